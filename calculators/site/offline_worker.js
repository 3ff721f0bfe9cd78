// Stands before calc-worker.mjs in the offline edition's worker: the book's files are the bytes that the page sent.
self.importScripts = undefined; // Pyodide takes a worker that has it for one without import()
const offline = { bytes: new Map(), urls: new Map() };

addEventListener("message", (event) => {
  if (typeof event.data === "string") return;
  event.stopImmediatePropagation();
  for (const [path, bytes] of Object.entries(event.data)) offline.bytes.set(path, bytes);
});

// The book's address of a file → its path, or undefined.
offline.pathOf = (url) => [...offline.bytes.keys()].find((path) => String(url).split("?")[0].endsWith(`/generated/${path}`));

// An address that this worker may read: one of the page's would not do, their origins differ.
offline.urlOf = (url) => {
  const path = offline.pathOf(url);
  if (!path) return url;
  const type = path.endsWith(".mjs") ? "text/javascript" : path.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
  if (!offline.urls.has(path)) offline.urls.set(path, URL.createObjectURL(new Blob([offline.bytes.get(path)], { type })));
  return offline.urls.get(path);
};

const { fetch: fetchElsewhere, XMLHttpRequest: Request } = self;
self.fetch = (resource, options) => {
  const path = offline.pathOf(resource?.url ?? resource);
  return path ? Promise.resolve(new Response(offline.bytes.get(path))) : fetchElsewhere(resource, options);
};
self.XMLHttpRequest = class extends Request {
  open(method, url, ...more) {
    super.open(method, offline.urlOf(url), ...more);
  }
};
// offline.py writes this name where calc-worker.mjs and Pyodide's loader import a script
self.importOffline = (url) => import(offline.urlOf(url));
