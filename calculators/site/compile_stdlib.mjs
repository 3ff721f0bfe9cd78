// node compile_stdlib.mjs PYODIDE_DIR LOCK_JSON library MODULE_LIST OUT.zip
// node compile_stdlib.mjs PYODIDE_DIR LOCK_JSON package IN.zip OUT.zip
// node compile_stdlib.mjs PYODIDE_DIR LOCK_JSON wheel IN.whl OUT.whl
// Compiles Python with Pyodide's own Python (the .pyc format belongs to one Python version).
//   library: the listed modules of the standard library, for `stdLibURL`, and a module _stdlib_rest: whatever the zip
//            lacks is fetched from the plain library when somebody imports it
//   package: the parts of our package that every card imports; a calculator stays source until it is asked for
//   wheel: somebody else's package, without its tests, types, headers and tools for other languages
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

def compiled(source, path, optimize):
    code = compile(source, path, "exec", dont_inherit=True, optimize=optimize)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)

def put(out, path, data):
    out.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 9)

def cut(listed):
    wanted = set(listed.split())
    with zipfile.ZipFile("/in.zip") as library, zipfile.ZipFile("/out.zip", "w") as out:
        modules = {module_of(n): n for n in sorted(library.namelist()) if n.endswith(".py")}
        unknown = wanted - set(modules)
        if unknown:
            raise ValueError(f"not in the library: {sorted(unknown)}")
        rest = " ".join(sorted(set(modules) - wanted))
        entries = [(modules[m], library.read(modules[m])) for m in sorted(wanted)]
        for path, source in [*entries, ("_stdlib_rest.py", REST % {"names": rest})]:
            # docstrings and asserts of the library are of no use to a reader's browser
            put(out, path + "c", compiled(source, "/lib/" + path, 2))

def precompile(shared):
    with zipfile.ZipFile("/in.zip") as package, zipfile.ZipFile("/out.zip", "w") as out:
        for path in package.namelist():
            data = package.read(path)
            parts = path.split("/")
            if path.endswith(".py") and parts[1] in shared and len(parts) <= 3:
                path, data = path + "c", compiled(data, "/book/" + path, 0)
            put(out, path, data)

def wheel(unused):
    import re
    with zipfile.ZipFile("/in.zip") as package, zipfile.ZipFile("/out.zip", "w") as out:
        for path in package.namelist():
            if re.search(unused, path):
                continue
            data = package.read(path)
            if path.endswith(".py"):
                path, data = path + "c", compiled(data, path, 2)
            put(out, path, data)
`;
const UNUSED = "/tests/|/f2py/|/include/|/typing/|/_pyinstaller/|_tests?[.][^/]*so$|/_simd[.]|[.](pyi|pxd|h|a|c|build|typed)$";
const SHARED = ["__init__.py", "core", "catalog", "formulas", "render"];

const JOBS = {
  library(python, folder, list) {
    python.put(join(folder, "python_stdlib.zip"));
    python.call("cut", readFileSync(list, "utf8"));
  },
  package(python, _folder, archive) {
    python.put(archive);
    python.call("precompile", SHARED);
  },
  wheel(python, _folder, archive) {
    python.put(archive);
    python.call("wheel", UNUSED);
  },
};

async function main([folder, lockFileContents, job, source, target]) {
  const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")).href);
  // no column numbers: a third of the size, and no reader sees a traceback
  const pyodide = await loadPyodide({ indexURL: folder, lockFileContents, env: { PYTHONNODEBUGRANGES: "1" } });
  pyodide.runPython(COMPILE);
  const python = {
    put: (path) => pyodide.FS.writeFile("/in.zip", new Uint8Array(readFileSync(path))),
    call: (name, argument) => pyodide.globals.get(name)(pyodide.toPy(argument)),
  };
  JOBS[job](python, folder, source);
  writeFileSync(target, pyodide.FS.readFile("/out.zip"));
}

// an uncaught error would print a megabyte of minified source
function fail(error) {
  console.error(String(error).slice(-2000));
  process.exit(1);
}
process.on("uncaughtException", fail);
main(process.argv.slice(2)).catch(fail);
