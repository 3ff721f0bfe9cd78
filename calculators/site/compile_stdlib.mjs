// node compile_stdlib.mjs PYODIDE_DIR LOCK_JSON MODULE_LIST OUT.zip
// Compiles the listed modules of Pyodide's standard library with Pyodide's own Python (the .pyc format belongs to one
// Python version) into a zip for `stdLibURL`.  Adds the module _stdlib_rest: whatever the zip lacks is fetched from the
// plain library when somebody imports it.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const COMPILE = `
import importlib.util, marshal, zipfile

REST = '''
"""Import hook for the modules that this cut library leaves out."""
import importlib, sys
from importlib.machinery import PathFinder

NAMES = frozenset(%(names)r.split())

class Rest:
    def __init__(self, url, archive):
        self.url, self.archive = url, archive

    def find_spec(self, name, path=None, target=None):
        if name not in NAMES:
            return None
        sys.meta_path.remove(self)
        from js import XMLHttpRequest
        request = XMLHttpRequest.new()
        request.open("GET", self.url, False)
        request.responseType = "arraybuffer"
        request.send()
        if request.status != 200:
            raise ImportError(f"{self.url}: {request.status}")
        with open(self.archive, "wb") as out:
            out.write(request.response.to_bytes())
        importlib.invalidate_caches()
        return PathFinder.find_spec(name, path, target)

def install(url):
    archive = next(p for p in sys.path if p.endswith(".zip"))
    sys.meta_path.append(Rest(url, archive))
'''

def module_of(path):
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

def compiled(source, path):
    # docstrings and asserts of the library are of no use to a reader's browser
    code = compile(source, "/lib/" + path, "exec", dont_inherit=True, optimize=2)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)

def cut(listed):
    wanted = set(listed.split())
    with zipfile.ZipFile("/library.zip") as library, zipfile.ZipFile("/out.zip", "w") as out:
        modules = {module_of(n): n for n in sorted(library.namelist()) if n.endswith(".py")}
        unknown = wanted - set(modules)
        if unknown:
            raise ValueError(f"not in the library: {sorted(unknown)}")
        rest = " ".join(sorted(set(modules) - wanted))
        entries = [(modules[m], library.read(modules[m])) for m in sorted(wanted)]
        for path, source in [*entries, ("_stdlib_rest.py", REST % {"names": rest})]:
            entry = zipfile.ZipInfo(path + "c", (1980, 1, 1, 0, 0, 0))
            out.writestr(entry, compiled(source, path), zipfile.ZIP_DEFLATED, 9)
`;

async function main([folder, lockFileContents, list, target]) {
  const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")).href);
  const pyodide = await loadPyodide({ indexURL: folder, lockFileContents });
  pyodide.FS.writeFile("/library.zip", new Uint8Array(readFileSync(join(folder, "python_stdlib.zip"))));
  pyodide.runPython(COMPILE);
  pyodide.globals.get("cut")(readFileSync(list, "utf8"));
  writeFileSync(target, pyodide.FS.readFile("/out.zip"));
}

// an uncaught error would print a megabyte of minified source
function fail(error) {
  console.error(String(error).slice(-2000));
  process.exit(1);
}
process.on("uncaughtException", fail);
main(process.argv.slice(2)).catch(fail);
