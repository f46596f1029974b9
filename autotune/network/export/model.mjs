// A model -----------------------------------------------------------------------------------------

const ARENA = 0, CONSTANTS = 1, LINE = 64, PAGE = 1 << 16;
const floats = new Float32Array(1), bits = new Uint32Array(floats.buffer);

/** What goes in and out: names, types and shapes, of every variant. */
export const signature = network.signature;

/** Make a model. `wasm`, `weights`: where their bytes are, or the bytes; the files beside this one. */
export async function create({wasm = files.wasm, weights = files.weights} = {}) {
  const found = await bytesOf(wasm);
  const module = found instanceof WebAssembly.Module ? found : await compiled(found);
  const constants = network.weights ? separate(await bytesOf(weights)) : embedded(module);
  const layout = layoutOf(module, constants.length);
  const instance = await WebAssembly.instantiate(module, imports(module, layout));
  return new Model(layout, settle(module, instance, layout), constants);
}

// Where everything is in the memory of a model; table and stack.
function layoutOf(module, constantBytes) {
  const {bytes, alignment, slots} = sizes(module);
  let end = STACK_BYTES;
  const room = (n, to = LINE) => {
    const start = Math.ceil(end / to) * to;
    end = start + n;
    return start;
  };
  const memoryBase = room(bytes, Math.max(alignment, LINE));
  const constants = room(constantBytes + LINE), arena = room(network.arenaBytes + LINE);
  const arrays = network.arrayBytes.map((n) => room(n + LINE));
  const tables = network.variants.map(({slots}) => room(8 * slots));
  return {
    memoryBase, constants, arena, arrays, tables, tableBase: 1,
    memory: new WebAssembly.Memory({initial: Math.ceil(end / PAGE)}),
    table: new WebAssembly.Table({initial: slots + 1, element: "anyfunc"}),
    stackPointer: new WebAssembly.Global({value: "i32", mutable: true}, STACK_BYTES),
  };
}

export class Model {
  #memory; #stackPointer; #variants;

  constructor(layout, exports, constants) {
    const {buffer} = this.#memory = layout.memory;
    this.#stackPointer = layout.stackPointer;
    new Uint8Array(buffer, layout.constants).set(constants);
    this.#variants = network.variants.map((variant, n) => {
      const table = layout.tables[n], words = new BigUint64Array(buffer, table, variant.slots);
      words[ARENA] = BigInt(layout.arena), words[CONSTANTS] = BigInt(layout.constants);
      for (const [slot, array] of variant.bound) words[slot] = BigInt(layout.arrays[array]);
      const ports = (side) => side.map((port) => ({...port, view: new globalThis[port.stored](
          buffer, Number(words[port.slot]) + port.offset, port.extent)}));
      return {run: exports[variant.run], table,
              inputs: ports(variant.inputs), outputs: ports(variant.outputs)};
    });
  }

  /** Bytes of memory that this model holds. */
  get memoryBytes() {
    return this.#memory.buffer.byteLength;
  }

  /**
   * One inference. `inputs`: a typed array by name, or {data, dims} where several shapes have as many
   * elements. Results are new arrays, or those of `outputs`.
   */
  run(inputs, outputs = {}) {
    const variant = this.#chosen(inputs);
    const found = variant.outputs.map((port) => {
      const given = own(outputs, port.name);
      if (given !== undefined) requireArray(port, given);
      return given ?? new globalThis[port.array](port.count);
    });
    for (const port of variant.inputs) write(port, dataOf(own(inputs, port.name)));
    this.#stackPointer.value = STACK_BYTES;
    variant.run(variant.table, 1n);
    variant.outputs.forEach((port, n) => read(port, found[n]));
    return Object.fromEntries(variant.outputs.map(({name}, n) => [name, found[n]]));
  }

  /** Shapes of the outputs for `inputs`, by name. */
  dims(inputs) {
    return Object.fromEntries(this.#chosen(inputs).outputs.map(({name, dims}) => [name, [...dims]]));
  }

  #chosen(inputs) {
    for (const {name} of this.#variants[0].inputs)
      if (own(inputs, name) === undefined) throw new TypeError(`input '${name}' is missing`);
    const known = this.#variants[0].inputs.map(({name}) => name);
    const other = Object.keys(inputs).find((name) => !known.includes(name));
    if (other !== undefined)
      throw new TypeError(`there is no input '${other}', but ${known.join(", ") || "none"}`);
    if (this.#variants.length === 1) {
      for (const port of this.#variants[0].inputs) {
        const given = own(inputs, port.name);
        requireArray(port, dataOf(given));
        requireDims(port, given.dims);
      }
      return this.#variants[0];
    }
    const fits = this.#variants.filter((variant) => variant.inputs.every((port) => {
      const given = own(inputs, port.name);
      return isArray(port, dataOf(given)) && areDims(port, given.dims);
    }));
    if (fits.length === 1) return fits[0];
    if (fits.length > 1) throw new TypeError("several shapes have as many elements: give {data, dims}");
    const shapes = this.#variants.map(({inputs}) => inputs.map(textOf).join(", "));
    throw new TypeError(`no variant is for inputs of these shapes; there are ${shapes.join("; ")}`);
  }
}

// Arrays of a call --------------------------------------------------------------------------------

// What an object has of its own: all have a `constructor` and a `toString`.
const own = (object, name) => object != null && Object.hasOwn(object, name) ? object[name] : undefined;
const dataOf = (input) => ArrayBuffer.isView(input) ? input : input.data;
const textOf = ({name, array, dims}) => `'${name}' ${array} [${dims}]`;
const isArray = (port, data) => data?.constructor?.name === port.array && data.length === port.count;
const areDims = (port, dims) => dims === undefined ||
  (dims.length === port.dims.length && port.dims.every((n, axis) => n === Number(dims[axis])));

function requireArray(port, data) {
  if (isArray(port, data)) return;
  const found = data?.constructor?.name ?? typeof data;
  throw new TypeError(`${textOf(port)} has ${port.count} elements, not ${found} of ${data?.length}`);
}

function requireDims(port, dims) {
  if (!areDims(port, dims)) throw new TypeError(`${textOf(port)} is not of shape [${dims}]`);
}

function write(port, data) {
  const {view, window, kind} = port;
  if (!window && kind === "plain") return view.set(data);
  const to = {half: widenHalf, bfloat: widenBfloat}[kind];
  walk(port, to ? (at, n) => { view[at] = to(data[n]); } : (at, n) => { view[at] = data[n]; });
}

function read(port, data) {
  const {view, window, kind} = port;
  if (!window && kind === "plain") return data.set(view);
  const from = {half: roundHalf, bfloat: roundBfloat}[kind];
  walk(port, from ? (at, n) => { data[n] = from(view[at]); } : (at, n) => { data[n] = view[at]; });
}

// Visits the places of all elements in memory, in their order.
function walk({count, window}, visit) {
  const {shape, strides} = window ?? {shape: [count], strides: [1]}, last = shape.length - 1;
  let n = 0;
  const along = (axis, at) => {
    for (let k = 0; k < shape[axis]; k++, at += strides[axis])
      if (axis === last) visit(at, n++);
      else along(axis + 1, at);
  };
  along(0, 0);
}

// Half precision ----------------------------------------------------------------------------------

function widenBfloat(x) {
  bits[0] = x << 16;
  return floats[0];
}

function roundBfloat(x) {
  floats[0] = x;
  if (Number.isNaN(x)) return bits[0] >>> 16 | 0x40;
  return bits[0] + 0x7fff + (bits[0] >>> 16 & 1) >>> 16;
}

function widenHalf(x) {
  const sign = x & 0x8000 ? -1 : 1, exponent = x >> 10 & 31, fraction = x & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

function roundHalf(x) {
  floats[0] = x;
  const sign = bits[0] >>> 16 & 0x8000, size = Math.abs(x);
  if (Number.isNaN(x)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | even(size * 2 ** 24);
  const exponent = (bits[0] >>> 23 & 255) - 127;
  return sign | (exponent + 14 << 10) + even(size * 2 ** (10 - exponent));
}

// The nearest integer, of two the even one.
function even(x) {
  const below = Math.floor(x), rest = x - below;
  return below + (rest > 0.5 || (rest === 0.5 && below % 2) ? 1 : 0);
}

// Files -------------------------------------------------------------------------------------------

async function compiled(bytes) {
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    if (globalThis.process?.versions?.node?.startsWith("20.")) {
      const {setFlagsFromString} = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:v8");
      setFlagsFromString("--experimental-wasm-relaxed-simd");
      return WebAssembly.compile(bytes);
    }
    throw new Error(`${network.name}: this engine cannot compile it: ${error.message}`,
                    {cause: error});
  }
}

async function bytesOf(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  if (source instanceof WebAssembly.Module) return source;
  if (typeof Response !== "undefined" && source instanceof Response) return source.arrayBuffer();
  const url = new URL(source, import.meta.url);
  if (url.protocol === "file:") {
    const {readFile} = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
    return readFile(url);
  }
  const found = await fetch(url);
  if (!found.ok) throw new Error(`${url}: ${found.status} ${found.statusText}`);
  return found.arrayBuffer();
}

function embedded(module) {
  return new Uint8Array(WebAssembly.Module.customSections(module, network.section)[0]);
}

function separate(file) {
  const bytes = new Uint8Array(file.buffer ?? file, file.byteOffset ?? 0, file.byteLength);
  const {digest, header, n} = network.weights;
  if (bytes.length !== header + n || digest.some((byte, k) => byte !== bytes[k]))
    throw new Error(`${network.name}: the weights are those of another network`);
  return bytes.subarray(header);
}
