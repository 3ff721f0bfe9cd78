// Runs Pyodide.  Strings of JSON go in and out, nothing else.
//   in:  {do: "boot", assets, book, packed, plain, needs}   once, first: where the files are and what they are called
//        {do: "run", n, needs, request}  one at a time; `request` is handed to calculators.render.live.respond as it is
//   out: {is: "ready", from}  {is: "step", text}  {is: "loaded", n}  {is: "reply", n, reply}
//        {is: "refused", n, text}        this request failed, the worker lives
//        {is: "failed", text}            the worker is of no more use
// Two ways to start: the memory of a machine that had started already is put back (`restore`), or, with `plain`, Pyodide
// starts as usual.  A machine that was put back and fails is no matter: the engine starts a plain one and asks again.
const WASM = "pyodide.asm.wasm";
const PAGE = 256; // of a snapshot
const EMPTY_WASM = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0);
const BOOT = `
import sys
sys.path.insert(0, "/book")
def _boot(rest):
    if rest:
        import _stdlib_rest
        _stdlib_rest.install(rest)
    from calculators.render.live import respond
    return respond
_boot
`;

let assets, book, plain, pyodide, respond;
const say = (message) => postMessage(JSON.stringify(message));
const urlOf = (path) => assets + path;
const short = (error) => String(error?.message ?? error).trim().split("\n").pop().slice(0, 120);

const NO_MEMORY = "内存不够：请把数改小，或者关掉几个标签页再试";
const outOfMemory = (error) => error?.type === "MemoryError" || /could not allocate memory|maximum memory size|out of memory|OOM/i.test(error?.message);

// A failure that can be told to a reader in one sentence.
class Trouble extends Error {}

// Files are asked for before Pyodide asks: it then gets the answer that is already under way.
const early = new Map();
const nativeFetch = self.fetch;
self.fetch = (resource, options) => early.get(String(resource?.url ?? resource))?.() ?? nativeFetch(resource, options);

// Every file but the scripts comes through here.  The browser hands out one with a hash when it has all of it.
async function download(path, integrity = book.pyodide.integrity[path]) {
  const response = await nativeFetch(urlOf(path), { integrity });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

function begin(path) {
  const answer = download(path);
  answer.catch(() => {}); // looked at where it is used
  early.set(urlOf(path), () => early.delete(urlOf(path)) && answer);
  return answer;
}

// The same for Python, which cannot wait: it asks for the calculators of a topic when one is imported.
self.readNow = (path) => {
  const request = new XMLHttpRequest();
  request.open("GET", urlOf(path), false);
  request.responseType = "arraybuffer";
  request.send();
  if (request.status !== 200) throw new Error(`${path}: ${request.status}`);
  return new Uint8Array(request.response);
};

const unpacked = (response) => response.body.pipeThrough(new DecompressionStream("gzip"));

// Compiles while the bytes arrive.
const compile = (body) => WebAssembly.compileStreaming(new Response(body, { headers: { "content-type": "application/wasm" } }));
const compilePacked = async (path) => compile(unpacked(await download(path, "")));

// The packed file where the host sends wasm as it is, else the plain one of any type.
async function compileWhole(packed) {
  if (packed) {
    try {
      return await compilePacked(packed);
    } catch {
      // the plain file is still there
    }
  }
  const response = await download(book.pyodide.folder + WASM, "");
  const typed = response.headers.get("content-type") === "application/wasm";
  return typed ? WebAssembly.compileStreaming(response) : compile(response.body);
}

// Pyodide only logs a wasm that does not load, and then waits for ever.  Returns a promise that can only fail.
function instantiateEarly(compiled) {
  early.set(urlOf(book.pyodide.folder + WASM), () => Promise.resolve(null));
  return new Promise((_, reject) => {
    compiled.catch(reject);
    WebAssembly.instantiateStreaming = async (_response, imports) => {
      try {
        const module = await compiled;
        return { module, instance: await WebAssembly.instantiate(module, imports) };
      } catch (error) {
        reject(error);
        throw error;
      }
    };
  });
}

async function load(options) {
  const { folder, stdlib, lock } = book.pyodide;
  const { loadPyodide } = await import(urlOf(folder + "pyodide.mjs"));
  pyodide = await loadPyodide({
    indexURL: urlOf(folder),
    packageBaseUrl: urlOf(folder),
    stdLibURL: urlOf(stdlib),
    lockFileContents: JSON.stringify(lock),
    env: { PYTHONDONTWRITEBYTECODE: "1" },
    ...options,
  });
}

// Puts the pages of a snapshot (site/snapshot.mjs) into a memory that is as after instantiating; returns Pyodide's state.
function place(image, { HEAPU8, HEAPU32 }) {
  const words = new Uint32Array(image);
  const [check, stateBytes, runs, sum] = words;
  let at = 16 + 8 * runs + stateBytes;
  const state = new TextDecoder().decode(new Uint8Array(image, at - stateBytes, stateBytes));
  for (let i = 4; i < 4 + 2 * runs; i += 2) {
    const bytes = words[i + 1] * PAGE;
    HEAPU8.set(new Uint8Array(image, at, bytes), words[i] * PAGE);
    at += bytes;
  }
  let total = 0;
  for (let i = 0; i < (check * PAGE) / 4; i++) total = (total + HEAPU32[i]) | 0;
  if (total >>> 0 !== sum) throw new Error("the memory is not what was kept");
  return JSON.parse(state);
}

// Puts back the memory of a machine that had started, with the engine imported.
async function restore() {
  const { folder, stdlib, rest, snapshot } = book.pyodide;
  const image = download(snapshot).then((response) => new Response(unpacked(response)).arrayBuffer());
  image.catch(() => {}); // looked at below
  early.set(urlOf(stdlib), () => Promise.resolve(new Response(""))); // nothing is imported from it
  await load({
    _loadSnapshot: new ArrayBuffer(0),
    createPyodideModule: async (settings) => {
      const { default: create } = await import(urlOf(folder + "pyodide.asm.mjs"));
      const machine = await create(Object.assign(settings, { noInitialRun: true }));
      const pages = await image;
      settings.API.restoreSnapshot = () => place(pages, machine);
      return machine;
    },
  });
  return pyodide.pyimport("_shelf").wake(book.bundle, urlOf(rest), Math.random());
}

async function startPlain() {
  const { stdlib, rest } = book.pyodide;
  const library = begin(stdlib);
  const bundle = download(book.bundle).then((response) => response.arrayBuffer());
  early.set(urlOf(stdlib), () => library.catch(() => new Promise(() => {}))); // we report it, Pyodide would not
  const [archive] = await Promise.all([bundle, library, load()]);
  pyodide.unpackArchive(archive, "zip", { extractDir: "/book" });
  return pyodide.runPython(BOOT)(rest && urlOf(rest));
}

async function boot(message) {
  ({ assets, book, plain } = message);
  const { folder, lock, cut } = book.pyodide;
  try {
    new WebAssembly.Module(EMPTY_WASM);
  } catch {
    throw new Trouble("这个网站的安全策略不允许运行 WebAssembly：请站长在 script-src 里加上 'wasm-unsafe-eval'");
  }
  import(urlOf(folder + "pyodide.asm.mjs")).catch(() => {}); // Pyodide imports it again, and reports
  const broken = instantiateEarly(plain ? compileWhole(message.packed) : compilePacked(cut));
  for (const name of message.needs) begin(folder + lock.packages[name].file_name);
  respond = await Promise.race([plain ? startPlain() : restore(), broken]);
  say({ is: "ready", from: plain ? "plain" : "snapshot" });
}

// Why did it not start?  Asks for each file again and names the first that is not what it should be.
async function diagnose(paths) {
  for (const path of paths) {
    const name = path.split("/").pop();
    let response;
    try {
      response = await nativeFetch(urlOf(path), { cache: "no-cache" });
    } catch {
      return `${name} 下载不到：网络断了或者被拦住了，请检查网络后再试`;
    }
    if (!response.ok) return `${name} 下载不到（服务器回答 ${response.status}）：请换个网络再试，或请站长检查这个文件`;
    const type = response.headers.get("content-type") ?? "";
    if (name.endsWith(".mjs") && !type.includes("javascript")) return `${name} 的类型是 ${type || "空"}：请站长把 .mjs 设成 text/javascript`;
    response.body?.cancel();
    try {
      await (await nativeFetch(urlOf(path), { integrity: book.pyodide.integrity[path] })).arrayBuffer();
    } catch {
      return `${name} 的内容不对：请清除浏览器缓存后刷新，或请站长重新上传这个文件`;
    }
  }
  return "";
}

function bootFiles() {
  const { folder, stdlib } = book.pyodide;
  return [folder + "pyodide.mjs", folder + "pyodide.asm.mjs", folder + WASM, stdlib, book.bundle];
}

async function loadPackages(needs, n) {
  for (const name of needs) {
    if (pyodide.loadedPackages[name]) continue;
    const path = book.pyodide.folder + book.pyodide.lock.packages[name].file_name;
    say({ is: "step", text: `正在载入 ${name}（这张卡要用，约 3 MB）……` });
    let why = "它没有装上";
    try {
      await pyodide.loadPackage(name, { messageCallback() {}, errorCallback() {} });
    } catch (error) {
      if (outOfMemory(error) || error instanceof WebAssembly.RuntimeError) throw error; // it is not the package
      why = short(error);
    }
    if (!pyodide.loadedPackages[name]) {
      const found = await diagnose([path]);
      if (!found && !plain) throw new Error(why); // the file is sound: a whole machine may do what this one cannot
      throw new Trouble(`这张卡要用 ${name}，但是 ${found || why}`);
    }
    pyodide.runPython(`import ${name}`); // seconds on a phone: not the calculation's time
  }
  if (needs.length) say({ is: "loaded", n });
}

async function run({ n, needs, request }) {
  try {
    await loadPackages(needs, n);
    say({ is: "reply", n, reply: respond(request) });
  } catch (error) {
    // A Python exception leaves Python usable; anything else is a broken machine.  One that was put back is never to blame
    // a calculator: the whole one has the last word.
    if (error instanceof Trouble) say({ is: "refused", n, text: error.message });
    else if (outOfMemory(error)) say({ is: "failed", text: NO_MEMORY }); // what is left would not do for the next card either
    else if (plain && error instanceof pyodide.ffi.PythonError) say({ is: "refused", n, text: `计算器内部出错（${error.type}），请把这组输入告诉我们` });
    else say({ is: "failed", text: `计算停下了（${short(error)}）` });
  }
}

onmessage = async ({ data }) => {
  const message = JSON.parse(data);
  if (message.do === "run") return run(message);
  try {
    await boot(message);
  } catch (error) {
    const found = error instanceof Trouble ? error.message : plain && (await diagnose(bootFiles()));
    say({ is: "failed", text: outOfMemory(error) ? NO_MEMORY : found || `Python 没有启动（${short(error)}）` });
  }
};
