// node parity.mjs PYODIDE_DIR LOCK_JSON BUNDLE.zip JOBS.json OUT.json
// Runs calculators under Pyodide: for each job {id, values} what Calculator.run gives, or the messages of its refusal,
// and at the end the standard library's modules that were imported on the way.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const RUN = `
import json, sys
sys.path.insert(0, "/book")
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.render.live import respond

def run(job):
    job = json.loads(job)
    if not job["values"]:  # once with its page
        respond(json.dumps({"id": job["id"], "key": "calc-x-1", "values": {}, "base": {}}))
    try:
        done = load(job["id"]).run(job["values"], drop_unused=True)
    except Refusal as refusal:
        return json.dumps({"errors": [[e.field, e.message] for e in refusal.errors]})
    return json.dumps({"values": dict(done.values), "texts": dict(done.texts), "lines": list(done.lines), "verdict": done.verdict})

def library():
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return json.dumps(sorted(name for name, file in files.items() if ".zip/" in file and not name.startswith("_frozen")))
`;

async function main([folder, lockFileContents, bundle, jobs, out]) {
  const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")).href);
  const pyodide = await loadPyodide({ indexURL: folder, packageBaseUrl: folder, lockFileContents, env: { PYTHONDONTWRITEBYTECODE: "1" } });
  pyodide.unpackArchive(new Uint8Array(readFileSync(bundle)), "zip", { extractDir: "/book" });
  const asked = JSON.parse(readFileSync(jobs, "utf8"));
  const needs = new Set(asked.flatMap((job) => job.needs));
  for (const name of needs) await pyodide.loadPackage(name, { messageCallback() {} });
  pyodide.runPython(RUN);
  const run = pyodide.globals.get("run");
  const answers = asked.map((job) => JSON.parse(run(JSON.stringify(job))));
  writeFileSync(out, JSON.stringify({ answers, library: JSON.parse(pyodide.globals.get("library")()) }));
}

// an uncaught error would print a megabyte of minified source
function fail(error) {
  console.error(String(error).slice(-3000));
  process.exit(1);
}
process.on("uncaughtException", fail);
main(process.argv.slice(2)).catch(fail);
