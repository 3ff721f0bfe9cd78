// Appended to book.js in the offline edition (offline.py): stands in for the worker where a page may load nothing but
// classic scripts.  Such scripts bring the files as base64; a classic worker made from a blob gets their bytes.
(() => {
  "use strict";
  if (globalThis.aiInfraOffline) return; // a theme may run the script again
  const FOLDER = new URL("../offline/", document.currentScript.src).href;
  const kept = new Map(); // file of ours → promise of {path: bytes}
  let arriving = null;

  async function bring(name) {
    const texts = await new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: FOLDER + name });
      arriving = {};
      script.onload = () => resolve(arriving);
      script.onerror = () => reject(new Error(`offline/${name} 没有载入：请把压缩包整个解开，再打开里面的 index.html`));
      document.head.append(script);
      script.remove();
    });
    const bytes = async ([path, text]) => [path, await (await fetch(`data:application/octet-stream;base64,${text}`)).arrayBuffer()];
    return Object.fromEntries(await Promise.all(Object.entries(texts).map(bytes)));
  }

  // One script at a time: each leaves what it brings in `arriving`.
  let last = Promise.resolve();
  function files(name) {
    if (!kept.has(name)) {
      const coming = (last = last.catch(() => {}).then(() => bring(name)));
      kept.set(name, coming);
      coming.catch(() => kept.delete(name));
    }
    return kept.get(name);
  }

  globalThis.aiInfraOffline = class {
    static take(texts) {
      arriving = texts;
    }

    constructor(_url, options) {
      this.told = options.type === "module";
      this.sent = new Set();
      this.turn = Promise.resolve();
    }

    postMessage(text) {
      this.turn = this.turn.then(() => this.deliver(text)).catch((error) => this.over || this.onerror(new ErrorEvent("error", { message: error.message })));
    }

    async deliver(text) {
      const { plain, needs } = JSON.parse(text);
      for (const name of ["python", ...(plain ? ["plain"] : []), ...needs]) {
        if (this.sent.has(name)) continue;
        this.sent.add(name);
        const { worker, ...brought } = await files(`${name}.js`);
        if (this.over) return;
        if (worker) this.start(worker);
        this.native.postMessage(brought);
      }
      if (!this.over) this.native.postMessage(text);
    }

    start(script) {
      const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
      this.native = new globalThis.aiInfraState.NATIVE_WORKER(url);
      this.native.onmessage = (event) => this.onmessage(event);
      this.native.onerror = (event) => this.onerror(event);
    }

    terminate() {
      this.over = true;
      this.native?.terminate();
    }
  };
})();
