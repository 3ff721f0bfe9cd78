// node snapshot.mjs PYODIDE_DIR LOCK_JSON STDLIB.zip BUNDLE.zip PROOF.json FUNCTIONS.txt OUT.zip
// Starts Pyodide once, imports the engine, and keeps the memory: a reader's browser puts it back and need not start.
// Three machines:
//   one compiles what nobody has imported yet.  Formulas and rare parts of the library go along as code; the calculators
//   of a topic are a file of their own, OUT's shelf-TOPIC-HASH.bin, fetched when the first of them is asked for
//   one is started, cleaned and kept; PROOF.json = {book, request, reply} goes along too, for `wake` to prove itself
//   one is instantiated only: what the kept memory has in common with it need not be sent
// OUT's wasm.bin, gzipped: the machine without the functions that nobody calls.
// OUT's snapshot.bin, gzipped: 32-bit words [pages to check, bytes of the state, number of runs, sum of the words of the pages to
// check], for each run [first page, pages], then Pyodide's own state as JSON (padded to words), then the pages of the runs.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { cut, listed } from "./cut_wasm.mjs";

const PAGE = 256;
const STATE = 48; // where Pyodide's own file holds its state; behind it the memory
// The same hash of a text every time, and no column numbers in tracebacks that nobody sees.
const ENV = { PYTHONDONTWRITEBYTECODE: "1", PYTHONHASHSEED: "0", PYTHONNODEBUGRANGES: "1", PYTHONPATH: "/boot" };

// Runs before Pyodide's own Python: its event loop would bring asyncio, ssl and much more that a calculator never uses.
const SITE = `
import sys
from types import ModuleType

def event_loop():
    from pyodide_js._api import scheduleCallback
    sys.modules["pyodide"]._kept = scheduleCallback  # Pyodide expects it among its references

for name in ("asyncio", "pyodide.webloop"):
    sys.modules[name] = ModuleType(name)
sys.modules["pyodide.webloop"]._initialize_event_loop = event_loop
for name in ("bz2", "lzma", "compression", "compression.zstd"):  # shutil does without
    sys.modules[name] = None
`;

const COMPILE = `
import marshal, zipfile, zlib
from _sha2 import sha256  # all that this library has of hashlib

def parts(archive, root, absent):
    """(module name, file, is it a package, code or None, data) for each file of the archive."""
    with zipfile.ZipFile(archive) as opened:
        for path in opened.namelist():
            data = opened.read(path)
            stem, dot, suffix = path.rpartition(".")
            name = stem.replace("/", ".").removesuffix(".__init__")
            code = {"py": lambda: marshal.dumps(compile(data, root + path, "exec", dont_inherit=True, optimize=2)), "pyc": lambda: data[16:]}.get(suffix, lambda: None)()
            if name.partition(".")[0] not in absent:
                yield name, root + path, stem.endswith("__init__"), code, data

def topic(name, package):
    """The shelf of its own that a module stands on, or ""."""
    top, _, rest = name.partition(".")
    if name.startswith("calculators.catalog.configs"):
        return "configs"
    first = rest.partition(".")[0]
    return "" if top != "calculators" or package or first in ("core", "catalog", "formulas", "render") else first

def shelves(absent):
    """Writes /shelf, (module → place, package, code; module → shelf file, its hash; data files), and the shelf files into /out.zip."""
    codes, topics, files = {}, {}, {}
    for name, place, package, code, data in (*parts("/lib.zip", "/lib/python314.zip/", absent), *parts("/bundle.zip", "/book/", absent)):
        if code is None:
            files[place] = data
        else:
            codes[name] = (place, package, code)
            topics.setdefault(topic(name, package), {})[name] = codes[name]
    away = {}
    with zipfile.ZipFile("/out.zip", "w") as out:
        for label, members in topics.items():
            if label:
                packed = zlib.compress(marshal.dumps(members), 9)
                digest = sha256(packed).hexdigest()
                file = f"shelf-{label}-{digest[:8]}.bin"
                out.writestr(zipfile.ZipInfo(file, (1980, 1, 1, 0, 0, 0)), packed)
                away |= dict.fromkeys(members, (file, digest))
    with open("/shelf", "wb") as out:
        marshal.dump((codes, away, files), out)

def add(name, path):
    with zipfile.ZipFile("/out.zip", "a") as out, open(path, "rb") as data:
        out.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data.read())
`;
// Left to the whole library, which is fetched when somebody does import one of them.
const ABSENT = ["asyncio", "bz2", "compression", "concurrent", "logging", "lzma", "pyodide", "selectors", "signal", "socket", "ssl", "subprocess"];

const SHELF = `
"""What a restored machine holds as code until somebody imports it, and how it wakes."""
import marshal, os, random, zlib
from _sha2 import sha256
from importlib.util import spec_from_file_location

class Shelf:
    def __init__(self, codes, away):
        self.codes, self.away = codes, away

    def find_spec(self, name, path=None, target=None):
        if name not in self.codes and name in self.away:
            self.fetch(*self.away[name])
        if name not in self.codes:
            return None
        place, package, _ = self.codes[name]
        return spec_from_file_location(name, place, loader=self, submodule_search_locations=[place.rpartition("/")[0]] if package else None)

    def fetch(self, file, digest):
        from js import readNow
        data = readNow(file).to_bytes()
        if sha256(data).hexdigest() != digest:
            raise ImportError(file)
        self.codes |= marshal.loads(zlib.decompress(data))
        self.away = {name: (other, _) for name, (other, _) in self.away.items() if other != file}

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(marshal.loads(self.codes[module.__spec__.name][2]), module.__dict__)

def write(files):
    for path, data in files.items():
        os.makedirs(path.rpartition("/")[0], exist_ok=True)
        with open(path, "wb") as out:
            out.write(data)

def wake(book, rest, chance):
    """The engine's one function.  Raises RuntimeError for a memory of another book and for a wrong answer."""
    if book != PROOF["book"]:
        raise RuntimeError("this memory belongs to another book")
    random.seed(chance)  # the memory's own state is the same for every reader
    write(FILES)
    import _stdlib_rest
    _stdlib_rest.NAMES |= REST
    _stdlib_rest.install(rest)
    from calculators.render.live import respond
    if respond(PROOF["request"]) != PROOF["reply"]:
        raise RuntimeError("the restored machine calculates something else")
    return respond
`;

const PREPARE = `
WARM = ("decode-bound", "train-memory", "roofline")
LARGE = 100_000  # bytes of a table that few calculators read: smaller as text

def prepare(shelf_source, proof):
    import gc, json, linecache, marshal, sys, types, zipimport
    sys.path[:] = ["/book", *(p for p in sys.path if p != "/boot")]
    for name in ("asyncio", "pyodide.webloop", "bz2", "lzma", "compression", "compression.zstd", "sitecustomize"):
        del sys.modules[name]
    with open("/shelf", "rb") as stream:
        codes, away, files = marshal.load(stream)
    shelf = sys.modules["_shelf"] = types.ModuleType("_shelf")
    exec(compile(shelf_source, "/lib/_shelf.py", "exec", optimize=2), shelf.__dict__)
    finder = shelf.Shelf(codes, {})
    sys.meta_path.insert(0, finder)
    # files are here while the memory is made: the engine looks its calculators up by name, and reads its tables
    shelf.write({place: b"" for place, _, _ in codes.values() if place.startswith("/book/")} | files)
    import _stdlib_rest
    from calculators.catalog import store
    from calculators.core.index import modules
    from calculators.render.live import respond
    modules()
    shelf.PROOF, shelf.FILES = json.loads(proof), {path: data for path, data in files.items() if len(data) > LARGE}
    for path in set(files) - set(shelf.FILES):
        store.read(path.rpartition("/")[2].removesuffix(".json"))
    for id in WARM:  # fills what the engine keeps: the catalog's models and cards, patterns, a chart of each kind
        respond(json.dumps({"id": id, "key": "warm", "values": {}}))
    if respond(shelf.PROOF["request"]) != shelf.PROOF["reply"]:
        raise ValueError("Pyodide's answer differs from CPython's")
    finder.away = {name: file for name, file in away.items() if name not in sys.modules}
    for name in set(codes) & (set(sys.modules) | set(away)):
        del codes[name]
    library = {path.removesuffix(".pyc").removesuffix("/__init__").replace("/", ".") for path in zipimport._zip_directory_cache["/lib/python314.zip"]}
    shelf.REST = frozenset(library - set(codes) - set(sys.modules))
    sys.path_importer_cache.clear()
    zipimport._zip_directory_cache.clear()
    linecache.clearcache()
    sys.stdout.flush()
`;

// Emscripten's part of a machine is caught on its way to Pyodide.
async function boot(load, folder, options, onlyInstantiate = false) {
  let machine;
  const { default: create } = await import(pathToFileURL(join(folder, "pyodide.asm.mjs")).href);
  const createPyodideModule = async (settings) => (machine = await create(Object.assign(settings, { noInitialRun: onlyInstantiate })));
  const started = load({ indexURL: folder, createPyodideModule, ...options });
  const python = await (onlyInstantiate ? started.catch(() => null) : started); // that one has no Python to go on with
  return { machine, python };
}

// Free memory still holds what was there before: 3 MB of leftovers.  dlmalloc's blocks: [previous size, size | flags, …],
// bit 1 = in use; the words after them are its own links while a block is free.  Streams have buffers of 128 KiB.
function clean({ HEAPU32, HEAPU8, ___heap_base, _sbrk }) {
  const end = _sbrk(0);
  for (let at = ___heap_base; at < end; ) {
    const head = HEAPU32[(at + 4) >>> 2];
    const size = head & ~7;
    if (size < 16) break; // the top's end mark
    if (!(head & 2)) HEAPU8.fill(0, at + (size < 256 ? 16 : 32), Math.min(at + size, end));
    else if (size === 131080) HEAPU8.fill(0, at + 8, at + size);
    at += size;
  }
  HEAPU8.fill(0, end);
}

// Pages that differ, as runs [first page, pages], and the pages below which anything else lies that is not zero.
function differences(memory, fresh) {
  const zeros = new Uint8Array(PAGE);
  const runs = [];
  let check = 0;
  for (let page = 0; page < memory.length / PAGE; page++) {
    const [now, before] = [memory, fresh].map((bytes) => bytes.subarray(page * PAGE, (page + 1) * PAGE));
    if (Buffer.compare(now, before) !== 0) {
      const last = runs.at(-1);
      if (last && last[0] + last[1] === page) last[1]++;
      else runs.push([page, 1]);
    } else if (Buffer.compare(now, zeros) !== 0) check = page + 1;
  }
  return { runs, check };
}

function pack(memory, state, { runs, check }) {
  const json = Buffer.from(state.padEnd(Math.ceil(state.length / 4) * 4)); // ASCII
  const sum = new Uint32Array(memory.buffer, memory.byteOffset, (check * PAGE) / 4).reduce((total, word) => (total + word) | 0, 0);
  const head = Uint32Array.of(check, json.length, runs.length, sum, ...runs.flat());
  const pages = runs.map(([page, count]) => memory.subarray(page * PAGE, (page + count) * PAGE));
  return gzipSync(Buffer.concat([Buffer.from(head.buffer), json, ...pages]), { level: 9 });
}

async function main([folder, lockFileContents, library, bundle, proof, functions, target]) {
  const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")).href);
  const bytes = (path) => new Uint8Array(readFileSync(path));
  const common = { lockFileContents, stdLibURL: library };

  const { python: compiler } = await boot(loadPyodide, folder, { ...common, env: ENV });
  compiler.FS.writeFile("/lib.zip", bytes(library));
  compiler.FS.writeFile("/bundle.zip", bytes(bundle));
  compiler.runPython(COMPILE);
  compiler.globals.get("shelves")(compiler.toPy(ABSENT));
  const shelf = compiler.FS.readFile("/shelf");

  const fsInit = async (FS) => {
    FS.mkdirTree("/boot");
    FS.writeFile("/boot/sitecustomize.py", SITE);
    FS.writeFile("/shelf", shelf);
  };
  const { machine, python } = await boot(loadPyodide, folder, { ...common, env: ENV, fsInit, _sysExecutable: "python", _makeSnapshot: true });
  python.runPython(PREPARE);
  python.globals.get("prepare")(SHELF, readFileSync(proof, "utf8"));
  python.runPython("del prepare, WARM, LARGE; import gc; gc.collect()");
  clean(machine);
  const image = python.makeMemorySnapshot();
  const [, head, stateBytes] = new Uint32Array(image.buffer, image.byteOffset, 3);
  const state = Buffer.from(image.subarray(STATE, STATE + stateBytes)).toString();
  const memory = image.slice(head);

  // another name, so that the page which holds it counts as different
  const { HEAPU8: fresh } = (await boot(loadPyodide, folder, { ...common, _sysExecutable: "none" }, true)).machine;
  if (memory.length !== fresh.length) throw new Error(`the memory grew to ${memory.length} bytes: import less, or teach calc-worker.mjs to grow it`);
  const wasm = cut(bytes(join(folder, "pyodide.asm.wasm")), listed(readFileSync(functions, "utf8")));
  const made = { "snapshot.bin": pack(memory, state, differences(memory, fresh)), "wasm.bin": gzipSync(wasm, { level: 9 }) };
  for (const [name, data] of Object.entries(made)) {
    compiler.FS.writeFile("/made", data);
    compiler.globals.get("add")(name, "/made");
  }
  writeFileSync(target, compiler.FS.readFile("/out.zip"));
}

// an uncaught error would print a megabyte of minified source
function fail(error) {
  console.error(String(error).slice(-2000));
  process.exit(1);
}
process.on("uncaughtException", fail);
main(process.argv.slice(2)).catch(fail);
