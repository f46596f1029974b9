// Modules of autotune: how they are placed in a memory, and the functions that they call.

// Bytes of a stack that is large enough for the local buffers of any kernel.
export const STACK_BYTES = 2 << 20;

// The error function, by series and by a continued fraction: below 1e-15 of error.
function erf(x) {
  const z = Math.abs(x);
  if (Number.isNaN(x)) return x;
  if (z > 6) return Math.sign(x);
  if (z < 2.5) {
    let term = x, sum = x;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
      term *= -x * x / n;
      sum += term / (2 * n + 1);
    }
    return sum * 2 / Math.sqrt(Math.PI);
  }
  let tail = 0;
  for (let n = 60; n > 0; n--) tail = n / 2 / (z + tail);
  return Math.sign(x) * (1 - Math.exp(-z * z) / Math.sqrt(Math.PI) / (z + tail));
}

const fmod = (a, b) => a % b;
const library = {erf, fmod, fmodf: fmod, sinf: Math.sin, cosf: Math.cos, tanf: Math.tan};
for (const name of ["exp", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
                    "cosh", "tanh", "asinh", "acosh", "atanh", "pow"]) library[name] = Math[name];

// Exported functions by name, in the order in which they are put into the table.
export function functionsOf(module) {
  return WebAssembly.Module.exports(module)
      .filter(({name, kind}) => kind === "function" && !name.startsWith("__wasm_"))
      .map(({name}) => name).sort();
}

// What a module needs: `bytes` of memory at an address that `alignment` divides, and `slots`.
export function sizes(module) {
  const data = new Uint8Array(WebAssembly.Module.customSections(module, "dylink.0")[0]);
  let at = 2;
  const next = () => {
    let value = 0, shift = 0, byte;
    do {
      byte = data[at++];
      value += (byte & 127) * 2 ** shift;
      shift += 7;
    } while (byte > 127);
    return value;
  };
  const [bytes, power, slots] = [next(), next(), next()];
  return {bytes, alignment: 2 ** power, slots: slots + functionsOf(module).length};
}

// What a module is instantiated with, where its data are to be at `memoryBase` and its functions in
// the table from `tableBase` on. `more`: functions by name.
export function imports(module, {memory, table, memoryBase, tableBase, stackPointer, more = {}}) {
  const number = (value) => new WebAssembly.Global({value: "i32"}, value);
  return {env: {
    ...library,
    ...more,
    memory,
    __indirect_function_table: table,
    __stack_pointer: stackPointer,
    __memory_base: number(memoryBase),
    __table_base: number(tableBase + functionsOf(module).length),
  }};
}

// Makes an instance ready: its exported functions come first in the table. Returns them.
export function settle(module, {exports}, {table, tableBase}) {
  exports.__wasm_apply_data_relocs?.();
  functionsOf(module).forEach((name, n) => table.set(tableBase + n, exports[name]));
  return exports;
}

// Both, at once: pages of browsers refuse that for large modules.
export function place(module, where) {
  return settle(module, new WebAssembly.Instance(module, imports(module, where)), where);
}
