// Cuts Pyodide's wasm down to what the book calls: one in six of 16 955 functions, and the small ones, which weigh little.
// The others keep their number and type and trap when called: such a machine is given up, and the whole one starts and
// answers instead.
// wasm_functions.txt lists what tests/parity.mjs saw called when it ran everything, in a machine marked by `marked`.
const [CODE, CALL, END] = [10, 0x10, 0x0b];
const SMALL = 128; // bytes
const TRAP = Uint8Array.of(0, 0x00, END); // no locals, `unreachable`

function unsigned(bytes, at) {
  let value = 0;
  for (let shift = 0; ; shift += 7) {
    const byte = bytes[at++];
    value |= (byte & 127) << shift;
    if (byte < 128) return [value >>> 0, at];
  }
}

function written(value) {
  const out = [];
  for (; value > 127; value >>>= 7) out.push((value & 127) | 128);
  return [...out, value];
}

function section(bytes, wanted) {
  for (let at = 8; at < bytes.length; ) {
    const [size, from] = unsigned(bytes, at + 1);
    if (bytes[at] === wanted) return { start: at, from, end: from + size };
    at = from + size;
  }
}

export function bodies(bytes) {
  const found = [];
  let [count, at] = unsigned(bytes, section(bytes, CODE).from);
  for (; count; count--) {
    const [size, from] = unsigned(bytes, at);
    found.push(bytes.subarray(from, from + size));
    at = from + size;
  }
  return found;
}

function withBodies(bytes, changed) {
  const { start, end } = section(bytes, CODE);
  const parts = changed.flatMap((body) => [Uint8Array.from(written(body.length)), body]);
  const code = Buffer.concat([Uint8Array.from(written(changed.length)), ...parts]);
  return Buffer.concat([bytes.subarray(0, start), Uint8Array.from([CODE, ...written(code.length)]), code, bytes.subarray(end)]);
}

// Every function first writes 1 to the byte `base` + its number.
export function marked(bytes, base) {
  const mark = (number) => {
    const address = written((base + number) | 0);
    if (address.at(-1) & 64) address.push(address.pop() | 128, 0); // constants are signed
    return Uint8Array.from([0x41, ...address, 0x41, 1, 0x3a, 0, 0]);
  };
  const change = (body, number) => {
    let [groups, at] = unsigned(body, 0);
    for (; groups; groups--) at = unsigned(body, at)[1] + 1; // a count and a type of one byte
    return Buffer.concat([body.subarray(0, at), mark(number), body.subarray(at)]);
  };
  return withBodies(bytes, bodies(bytes).map(change));
}

// The functions that stay: the small ones, the given ones and whatever they seem to call (too many rather than too few).
function kept(bytes, used) {
  const imports = WebAssembly.Module.imports(new WebAssembly.Module(bytes)).filter(({ kind }) => kind === "function").length;
  const all = bodies(bytes);
  const stay = new Set([...used, ...all.keys()].filter((number, i) => i < used.length || all[number].length < SMALL));
  for (const number of used) {
    const body = all[number];
    for (let at = 0; at < body.length; at++) {
      if (body[at] !== CALL) continue;
      const callee = unsigned(body, at + 1)[0] - imports;
      if (callee >= 0 && callee < all.length) stay.add(callee);
    }
  }
  return stay;
}

export function cut(bytes, used) {
  const stay = kept(bytes, used);
  return withBodies(bytes, bodies(bytes).map((body, number) => (stay.has(number) ? body : TRAP)));
}

export const listed = (text) => text.split(/\s+/).filter(Boolean).map(Number);
