// The worker that runs Python, one a tab: started at the first touch of a card, kept over instant navigation.
// The latest request of a card wins and one request is in the worker at a time, so a moving slider needs no timer.
// Whatever fails ends in one sentence for the cards that wait (`card.trouble`); the next change starts anew.
(() => {
  "use strict";
  if (globalThis.aiInfra) return; // a theme may run the script again
  const ASSETS = new URL(".", document.currentScript.src).href;
  const BOOT_MS = 60000; // a wasm that never arrives raises no event
  const RUN_MS = 5000;
  const STARTING = "正在启动计算（第一次要等几秒）……";
  const KEPT = "；下面仍是改数以前的结果";
  const ON_FILE = "离线打开时请在本目录运行 python -m http.server，再访问 localhost:8000，就能改数";
  const TOO_OLD = "这个浏览器太旧，不能在页面里运行 Python：请用新版的 Chrome、Edge、Firefox 或 Safari（16.4 以上）";
  const NO_BOOK = "assets/generated/book.js 没有载入：请刷新，或请站长检查这个文件";
  const NO_WORKER = "浏览器不让页面启动 Worker：请检查隐私设置或插件";
  const DAMAGED = "calc-worker.mjs 的内容不对：请清除浏览器缓存后刷新，或请站长重新上传这个文件";
  const BOOT_LATE = "Python 启动超时：可能是网络太慢，或者有文件被拦住了，请换个网络再试";
  const RUN_LATE = "这组输入算得太久，已经停下：把数改小一些再试";

  let worker = null;
  let ready = false;
  let retried = false; // one restart for each failure
  let plain = false; // once a machine put back from a snapshot has failed
  let current = null; // the job in the worker: {card, n, needs, request}; card is null once nobody waits for it
  let timer = 0;
  let jobs = 0;
  let prefetched = false;
  const packages = new Set();
  const waiting = new Map(); // card → its latest request

  const book = () => globalThis.aiInfraBook;
  const onFile = () => location.protocol === "file:" && !globalThis.aiInfraOffline; // the offline edition brings its own
  const limit = (name, usual) => book()?.limits?.[name] ?? usual; // tests shorten them

  function arm(ms, late) {
    clearTimeout(timer);
    timer = setTimeout(() => restart(late), ms);
  }

  // A host that sends this script as it is also sends 9.6 MB of wasm as it is: take the packed file.
  function packed() {
    const [mine] = performance.getEntriesByName(`${ASSETS}calc-engine.js`);
    const asItIs = mine?.decodedBodySize > 0 && mine.encodedBodySize === mine.decodedBodySize;
    return (asItIs || globalThis.aiInfraOffline) && typeof DecompressionStream === "function" ? book().pyodide.wasm : "";
  }

  function start(needs) {
    if (worker) return;
    if (onFile()) return fail(ON_FILE);
    if (!book()) return fail(NO_BOOK);
    const { bundle, pyodide, version } = book();
    let modules = false;
    const options = {
      get type() {
        modules = true; // read only by browsers that know module workers
        return "module";
      },
    };
    try {
      worker = new (globalThis.aiInfraOffline ?? Worker)(`${ASSETS}calc-worker.mjs?v=${version}`, options);
    } catch {
      return fail(NO_WORKER);
    }
    if (!modules || typeof WebAssembly !== "object") return fail(TOO_OLD);
    const started = worker;
    worker.onmessage = ({ data }) => {
      if (worker !== started) return;
      const message = JSON.parse(data);
      HEARD[message.is](message);
    };
    worker.onerror = async (event) => {
      event.preventDefault();
      const text = ready ? "" : /SyntaxError/.test(event.message) ? DAMAGED : event.message ? "" : await whyNotLoaded();
      if (worker !== started) return;
      if (text) fail(text);
      else restart(`计算停下了（${event.message || "Worker 出错"}）`);
    };
    worker.postMessage(JSON.stringify({ do: "boot", assets: `${ASSETS}generated/`, book: { bundle, pyodide }, packed: packed(), plain: plain || !pyodide.snapshot, needs }));
    arm(limit("bootMs", BOOT_MS), BOOT_LATE);
  }

  async function whyNotLoaded() {
    try {
      const answer = await fetch(`${ASSETS}calc-worker.mjs`, { method: "HEAD" });
      const type = answer.headers.get("content-type") || "空";
      if (!answer.ok) return `calc-worker.mjs 下载不到（服务器回答 ${answer.status}）：请刷新，或请站长检查这个文件`;
      if (!type.includes("javascript")) return `calc-worker.mjs 的类型是 ${type}：请站长把 .mjs 设成 text/javascript`;
    } catch {
      return "calc-worker.mjs 下载不到：网络断了或者被拦住了，请检查网络和插件";
    }
    return "calc-worker.mjs 没能启动：可能被安全策略（worker-src）或浏览器插件拦住了，请关掉插件或告诉站长";
  }

  const HEARD = {
    ready({ from }) {
      clearTimeout(timer);
      document.documentElement.dataset.python = from; // for whoever looks into a slow start
      ready = true;
      pump();
    },
    step: ({ text }) => current?.card?.show("starting", text),
    loaded({ n }) {
      if (current?.n !== n) return;
      current.needs.forEach((name) => packages.add(name));
      arm(limit("runMs", RUN_MS), RUN_LATE);
    },
    reply: ({ n, reply }) => finish(n, (card, last) => card.answer(JSON.parse(reply), last)),
    refused: ({ n, text }) => finish(n, (card) => card.trouble(text + KEPT)),
    failed({ text }) {
      if (!ready && (plain || !book().pyodide.snapshot)) return fail(text);
      plain = true;
      restart(text);
    },
  };

  function pump() {
    if (!ready || current || !waiting.size) return;
    const [card, request] = waiting.entries().next().value;
    waiting.delete(card);
    current = { card, n: ++jobs, needs: card.needs, request };
    worker.postMessage(JSON.stringify({ do: "run", n: current.n, needs: current.needs, request }));
    const loaded = current.needs.every((name) => packages.has(name));
    if (loaded) arm(limit("runMs", RUN_MS), RUN_LATE);
    else arm(limit("bootMs", BOOT_MS), BOOT_LATE);
  }

  function finish(n, tell) {
    if (current?.n !== n) return;
    clearTimeout(timer);
    const { card } = current;
    current = null;
    retried = false;
    if (card) tell(card, !waiting.has(card));
    pump();
  }

  function quit() {
    clearTimeout(timer);
    worker?.terminate();
    worker = current = null;
    ready = false;
    packages.clear();
  }

  // Once: the request that was in the worker is asked again, unless its card has a later one.
  function restart(text) {
    if (retried) return fail(text);
    if (current?.card && !waiting.has(current.card)) waiting.set(current.card, current.request);
    plain ||= !ready;
    quit();
    retried = true;
    waiting.forEach((_, card) => card.show("starting", STARTING));
    start([]);
  }

  function fail(text) {
    const cards = new Set(waiting.keys());
    if (current?.card) cards.add(current.card);
    waiting.clear();
    quit();
    retried = false;
    cards.forEach((card) => card.trouble(text + KEPT));
  }

  function ask(card, request) {
    waiting.set(card, request);
    card.show(ready ? "running" : "starting", ready ? "" : STARTING);
    start(card.needs);
    pump();
  }

  function forget(card) {
    waiting.delete(card);
    if (current?.card === card) current.card = null;
  }

  // The browser's own low-priority fetch; the worker then finds the files in the cache.
  function prefetch() {
    if (prefetched || worker || !book() || globalThis.aiInfraOffline || onFile() || navigator.connection?.saveData) return;
    prefetched = true;
    const { bundle, pyodide } = book();
    const [loader, machine, wasm] = ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"].map((name) => pyodide.folder + name);
    const { snapshot, cut, stdlib } = pyodide;
    for (const path of [machine, loader, ...(snapshot ? [cut, snapshot] : [packed() || wasm, stdlib, bundle])]) {
      const link = document.createElement("link");
      Object.assign(link, { rel: "prefetch", href: `${ASSETS}generated/${path}` });
      document.head.append(link);
    }
  }

  addEventListener("pagehide", (event) => event.persisted || quit());
  globalThis.aiInfra = { ask, forget, start, prefetch };
})();
