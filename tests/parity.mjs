// node parity.mjs GENERATED BOOK.json JOBS.json OUT.json
// Runs calculators where readers run them, in a machine put back from the snapshot: for each job {id, values} what
// Calculator.run gives, or the messages of its refusal, for each {request} what the page gets; the standard library's modules that were imported on the way,
// those of them that only the whole library has, and the functions of the machine that were called.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gunzipSync } from "node:zlib";
import { bodies, marked } from "../calculators/site/cut_wasm.mjs";

const PAGE = 256;
const STACK_END = 4052560; // 10 MB below its beginning: nothing reaches it
const RUN = `
import json, sys
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.render.live import respond

def run(job):
    job = json.loads(job)
    if "request" in job:
        return json.dumps({"reply": respond(job["request"])})
    if not job["values"]:  # once with its page
        respond(json.dumps({"id": job["id"], "key": "calc-x-1", "values": {}, "base": {}}))
    try:
        done = load(job["id"]).run(job["values"], drop_unused=True)
    except Refusal as refusal:
        return json.dumps({"errors": [[e.field, e.message] for e in refusal.errors]})
    return json.dumps({"values": dict(done.values), "texts": dict(done.texts), "lines": list(done.lines), "verdict": done.verdict})

def library():
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return json.dumps(sorted(name for name, file in files.items() if ".zip/" in file and not name.startswith(("_frozen", "_stdlib_rest"))))
`;

// As in docs/assets/calc-worker.mjs.
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
  if (HEAPU32.subarray(0, (check * PAGE) / 4).reduce((total, word) => (total + word) | 0, 0) >>> 0 !== sum) throw new Error("another memory");
  return JSON.parse(state);
}

async function main([generated, bookFile, jobs, out]) {
  const { bundle, pyodide: book } = JSON.parse(readFileSync(bookFile, "utf8"));
  const bytes = (path) => new Uint8Array(readFileSync(join(generated, path)));
  const folder = join(generated, book.folder);
  const here = `${out}.d/`; // the same machine, but every function leaves a mark in the unused end of the stack
  mkdirSync(here);
  for (const name of ["pyodide.mjs", "pyodide.asm.mjs"]) copyFileSync(join(folder, name), join(here, name));
  const wasm = bytes(`${book.folder}pyodide.asm.wasm`);
  writeFileSync(join(here, "pyodide.asm.wasm"), marked(wasm, STACK_END));
  writeFileSync(join(here, "none"), "");

  const whole = [];
  globalThis.readNow = (path) => bytes(path);
  globalThis.XMLHttpRequest = class {
    status = 200;
    open = (_method, url) => whole.push(url);
    send = () => (this.response = bytes(book.rest).buffer);
  };
  const { loadPyodide } = await import(pathToFileURL(join(here, "pyodide.mjs")).href);
  const { default: create } = await import(pathToFileURL(join(here, "pyodide.asm.mjs")).href);
  const image = gunzipSync(bytes(book.snapshot));
  let machine;
  const pyodide = await loadPyodide({
    indexURL: here,
    packageBaseUrl: folder,
    lockFileContents: JSON.stringify(book.lock),
    stdLibURL: join(here, "none"),
    _loadSnapshot: new ArrayBuffer(0),
    createPyodideModule: async (settings) => {
      machine = await create(Object.assign(settings, { noInitialRun: true }));
      settings.API.restoreSnapshot = () => place(image.buffer.slice(image.byteOffset, image.byteOffset + image.length), machine);
      return machine;
    },
  });
  pyodide.pyimport("_shelf").wake(bundle, "whole library", 0.5);
  const asked = JSON.parse(readFileSync(jobs, "utf8"));
  const needs = new Set(asked.flatMap((job) => job.needs));
  for (const name of needs) await pyodide.loadPackage(name, { messageCallback() {} });
  pyodide.runPython(RUN);
  const run = pyodide.globals.get("run");
  const answers = asked.map((job) => JSON.parse(run(JSON.stringify(job))));
  if (machine.___stack_low !== STACK_END) throw new Error(`the stack ends at ${machine.___stack_low}`);
  const functions = bodies(wasm).flatMap((_, number) => (machine.HEAPU8[STACK_END + number] ? [number] : []));
  writeFileSync(out, JSON.stringify({ answers, library: JSON.parse(pyodide.globals.get("library")()), whole, functions }));
}

// an uncaught error would print a megabyte of minified source
function fail(error) {
  console.error(String(error.stack ?? error).slice(-3000));
  process.exit(1);
}
process.on("uncaughtException", fail);
main(process.argv.slice(2)).catch(fail);
