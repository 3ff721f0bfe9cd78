// What a page of the book remembers (this tab, this browser) and what a copied link says.
(() => {
  "use strict";
  if (globalThis.aiInfraState) return; // a theme may run the script again
  const PREFIX = "aiinfra.v1.";
  const MOST_PARAMETERS = 60;
  const LARGEST = 5e6; // bytes: no config.json and no export comes near
  const NATIVE_WORKER = globalThis.Worker; // on file:// the theme's shim puts another in its place

  // Where storage is blocked the theme's own scripts would stop: they, and we, get a memory that lasts as long as the page.
  let forgetful = false;
  for (const name of ["localStorage", "sessionStorage"]) {
    try {
      globalThis[name].length;
    } catch {
      forgetful = true;
      const kept = new Map();
      const value = { getItem: (key) => kept.get(key) ?? null, setItem: (key, text) => kept.set(key, String(text)), removeItem: (key) => kept.delete(key) };
      Reflect.defineProperty(globalThis, name, { value }); // false, not an error, where even that is forbidden
    }
  }

  // --- what this browser remembers ---
  const memory = (storage) => ({
    get(key) {
      try {
        return JSON.parse(globalThis[storage].getItem(PREFIX + key));
      } catch {
        return null; // storage is blocked, or holds somebody else's text
      }
    },
    set(key, value) {
      try {
        if (value === null) globalThis[storage].removeItem(PREFIX + key);
        else globalThis[storage].setItem(PREFIX + key, JSON.stringify(value));
        return !forgetful;
      } catch {
        return false; // the page works without a memory
      }
    },
  });

  // Everything of ours in localStorage, as one object, and back; strings that are not ours are left alone.
  const ours = () => Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const everything = () => Object.fromEntries(ours().map((key) => [key.slice(PREFIX.length), localStorage.getItem(key)]));

  function replaceAll(kept) {
    const before = everything();
    ours().forEach((key) => localStorage.removeItem(key));
    try {
      for (const [name, text] of Object.entries(kept)) localStorage.setItem(PREFIX + name, text);
    } catch (error) {
      replaceAll(before); // full: nothing is lost
      throw error;
    }
  }

  // One element: properties, then children; the only way in which the reading aids write a page.
  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  // A file for the reader to keep, and one that the reader hands us: anybody may have written it.
  function saveFile(name, data) {
    const url = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
    make("a", { href: url, download: name }).click();
    URL.revokeObjectURL(url);
  }

  async function openFile(field, name) {
    const [file] = field.files;
    const text = file && file.size <= LARGEST ? await file.text() : null;
    field.value = "";
    if (text === null) throw new Error("文件太大：导出的文件只有几十 KB");
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`这个文件不是 JSON：请选「导出」得到的 ${name}`);
    }
  }

  // A script of ours that is missing or damaged: said once, under the title.  The text and the printed answers stand.
  const broken = new Set();
  function note({ target, filename }) {
    const [, name] = /\/((?:calc[\w-]*|book|reading)\.js)/.exec(target?.src || filename || "") ?? [];
    if (name) broken.add(name);
  }
  addEventListener("error", note, true);
  addEventListener("load", () => {
    removeEventListener("error", note, true);
    const textContent = `${[...broken].join("、")} 没有正常载入，有的按钮不能用，正文和答案照旧。请刷新；还不行，请关掉拦截插件或者换个网络。`;
    if (broken.size) document.querySelector("article h1")?.after(make("p", { className: "book-broken", role: "alert", textContent }));
  });

  // --- links: ?calc=ID~N&i.NAME=value, where + is a plus ---
  const clip = (text) => (text.length > 30 ? `${text.slice(0, 30)}…` : text);

  function readLink(search) {
    const link = { card: null, values: new Map(), ignored: [] };
    for (const part of search.slice(1).split("&")) {
      const [rawName, ...rest] = part.split("=");
      let name, value;
      try {
        name = decodeURIComponent(rawName);
        value = decodeURIComponent(rest.join("="));
      } catch {
        if (rawName.startsWith("i.")) link.ignored.push(`${clip(rawName.slice(2))}（编码不对）`);
        continue;
      }
      if (name === "calc") link.card ??= value;
      if (!name.startsWith("i.")) continue;
      name = name.slice(2);
      if (link.values.has(name)) link.ignored.push(`${clip(name)}（重复）`);
      else if (link.values.size < MOST_PARAMETERS) link.values.set(name, value);
      else link.ignored.push(`${clip(name)}（第 ${MOST_PARAMETERS} 个以后）`);
    }
    return link;
  }

  const [tab, reader] = [memory("sessionStorage"), memory("localStorage")];
  globalThis.aiInfraState = { everything, make, replaceAll, clip, readLink, saveFile, openFile, tab, reader, LARGEST, NATIVE_WORKER };
})();
