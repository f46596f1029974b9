// A model -----------------------------------------------------------------------------------------

const {ARENA, CONSTANTS, LINE, PLAIN} = network.numbers, PAGE = 1 << 16;

/** What goes in and out: names, types and shapes, of every variant. */
export const signature = network.signature;

/**
 * Make a model. `wasm`, `weights`: where their bytes are, or the bytes; the files beside this one.
 * `threads`: of a module that was compiled for several. `sessions`: at a time, of one with a state.
 */
export async function create(
    {wasm = files.wasm, weights = files.weights, worker = files.worker, threads, sessions = 1} = {}) {
  const found = await bytesOf(wasm);
  const module = found instanceof WebAssembly.Module ? found : await compiled(found);
  const constants = network.weights ? separate(await bytesOf(weights)) : embedded(module);
  const layout = layoutOf(module, constants.length, threads, sessions);
  const more = network.team ? waiting(layout.memory) : {};
  const instance = await WebAssembly.instantiate(module, imports(module, {...layout, more}));
  const exports = settle(module, instance, layout);
  if (network.team) settleTeam(layout, exports);  // which workers look at from their beginning on
  const workers = network.team ? await workersOf(module, layout, worker) : [];
  return new Model(layout, exports, constants, workers);
}

// Where everything is in the memory of a model; table and stack.
function layoutOf(module, constantBytes, nThreads, nSessions) {
  const {bytes, alignment, slots} = sizes(module);
  let end = STACK_BYTES;
  const room = (n, to = LINE) => {
    const start = Math.ceil(end / to) * to;
    end = start + n;
    return start;
  };
  const memoryBase = room(bytes, Math.max(alignment, LINE));
  const constants = room(constantBytes + LINE), arena = room(network.arenaBytes + LINE);
  const rooms = (sizes) => sizes.map((n) => room(n + LINE));
  const arrays = rooms(network.arrayBytes), shapes = rooms(network.shapeBytes);
  const longest = rooms(network.roomBytes);
  const tables = network.variants.map(({slots}) => room(8 * slots));
  const plans = network.variants.map(({plan}) => room(8 * plan.length));
  const states = network.state ?
    Array.from({length: nSessions}, () => room(network.state.bytes + LINE)) : [];
  const threads = network.team ? roomsOfTeam(room, threadsOf(nThreads)) : {nThreads: 1};
  const initial = Math.ceil(end / PAGE);
  return {
    memoryBase, constants, arena, arrays, shapes, longest, tables, plans, tableBase: 1, states, threads,
    memory: new WebAssembly.Memory(network.team ? {initial, maximum: initial, shared: true} : {initial}),
    table: new WebAssembly.Table({initial: slots + 1, element: "anyfunc"}),
    stackPointer: new WebAssembly.Global({value: "i32", mutable: true}, STACK_BYTES),
  };
}

export class Model {
  #memory; #stackPointer; #functions; #variants; #nThreads; #states; #workers;

  constructor(layout, exports, constants, workers) {
    const {buffer} = this.#memory = layout.memory;
    this.#stackPointer = layout.stackPointer;
    this.#nThreads = BigInt(layout.threads.nThreads);
    this.#states = layout.states;
    this.#workers = workers;
    this.#functions = Object.fromEntries(
        Object.entries(network.functions).map(([name, symbol]) => [name, exports[symbol]]));
    new Uint8Array(buffer, layout.constants).set(constants);
    const words = (at, n) => new BigInt64Array(buffer, at, n);
    this.#variants = network.variants.map((variant, n) => {
      const table = layout.tables[n], plan = layout.plans[n], {places} = variant;
      words(plan, variant.plan.length).set(variant.plan.map(BigInt));
      const of = words(table, variant.slots);
      of[ARENA] = BigInt(layout.arena), of[CONSTANTS] = BigInt(layout.constants);
      const put = (at, addresses) => addresses.forEach((x, k) => { of[at + k] = BigInt(x); });
      const nEnds = variant.inputs.length + variant.outputs.length;
      put(places.arrays, layout.arrays.slice(0, nEnds));
      put(places.shapes, layout.shapes.slice(0, nEnds));
      put(places.rooms, layout.longest.slice(0, variant.outputs.length));
      const port = (one, k) => ({...one, number: k, functions: this.#functions,
          shape: words(layout.shapes[k], one.dims.length),
          view: new globalThis[one.stored](buffer, layout.arrays[k], one.count)});
      const inputs = variant.inputs.map(port);
      const outputs = variant.outputs.map((one, k) => port(one, inputs.length + k));
      return {run: exports[variant.run], table, inputs, outputs, planAt: BigInt(plan),
              tableAt: BigInt(table), shapesAt: BigInt(table + 8 * places.shapes),
              numbersAt: BigInt(table + 8 * places.numbers), arrays: layout.arrays,
              numbers: words(table + 8 * places.numbers, variant.nLengths),
              addresses: words(table + 8 * places.arrays, inputs.length + outputs.length)};
    });
  }

  /** Threads that compute. */
  get threads() {
    return Number(this.#nThreads);
  }

  /** End the threads of this model, which is of no use any more. */
  close() {
    for (const worker of this.#workers) worker.terminate();
  }

  /** A sequence with a state of its own. */
  session() {
    if (!network.state) throw new Error("the network has no state: call run()");
    const at = this.#states.pop();
    if (at === undefined) throw new Error("no room for another session: create({sessions})");
    return new Session({at, variants: this.#variants, buffer: this.#memory.buffer,
                        compute: (variant) => this.#compute(variant), give: () => this.#states.push(at)});
  }

  /** Bytes of memory that this model holds. */
  get memoryBytes() {
    return this.#memory.buffer.byteLength;
  }

  /**
   * One inference. `inputs`: a typed array by name, or {data, dims} where several shapes have as many
   * elements. Results are new arrays, or those of `outputs`; {data, dims} of a network with lengths.
   */
  run(inputs, outputs = {}) {
    if (network.state) throw new Error("the network has a state: call session()");
    const call = this.#chosen(inputs);
    const found = call.outputs.map((port) => {
      const given = dataOf(own(outputs, port.name));
      if (given !== undefined) requireArray(port, given);
      return given ?? new globalThis[port.array](port.count);
    });
    for (const port of call.inputs) write(port, dataOf(own(inputs, port.name)));
    this.#compute(call.variant);
    call.outputs.forEach((port, n) => read(port, found[n]));
    return Object.fromEntries(call.outputs.map(({name, dims}, n) =>
        [name, network.hasLengths ? {data: found[n], dims: [...dims]} : found[n]]));
  }

  /** Shapes of the outputs for `inputs`, by name. */
  dims(inputs) {
    return Object.fromEntries(this.#chosen(inputs).outputs.map(({name, dims}) => [name, [...dims]]));
  }

  #compute({table, tableAt, planAt, run}) {
    this.#stackPointer.value = STACK_BYTES;
    this.#functions.enter(planAt, tableAt, 0n);
    run(table, this.#nThreads);
    this.#functions.leave(planAt, tableAt, 0n);
  }

  #chosen(inputs) {
    requireInputs(this.#variants[0].inputs, inputs);
    if (network.hasLengths) return this.#sized(inputs);
    if (this.#variants.length === 1) {
      for (const port of this.#variants[0].inputs) {
        const given = own(inputs, port.name);
        requireArray(port, dataOf(given));
        requireDims(port, given.dims);
      }
      return callOf(this.#variants[0]);
    }
    const fits = this.#variants.filter((variant) => variant.inputs.every((port) => {
      const given = own(inputs, port.name);
      return isArray(port, dataOf(given)) && areDims(port, given.dims);
    }));
    if (fits.length === 1) return callOf(fits[0]);
    if (fits.length > 1) throw new TypeError("several shapes have as many elements: give {data, dims}");
    const shapes = this.#variants.map(({inputs}) => inputs.map(textOf).join(", "));
    throw new TypeError(`no variant is for inputs of these shapes; there are ${shapes.join("; ")}`);
  }

  // The smallest variant that has these sizes, with its ports as they are in this call.
  #sized(inputs) {
    let wrong;
    this.#stackPointer.value = STACK_BYTES;
    for (const n of network.order) {
      const variant = this.#variants[n], {planAt, shapesAt, numbersAt} = variant;
      const given = variant.inputs.map((port) => sizedTo(port, dimsOf(port, own(inputs, port.name))));
      wrong = given.find(({dims, shape}) => dims.length !== shape.length);
      if (wrong) {
        wrong = `${shapeText(wrong)}, not [${wrong.dims}]`;
        continue;
      }
      for (const {dims, shape} of given) dims.forEach((extent, axis) => { shape[axis] = BigInt(extent); });
      const code = Number(this.#functions.numbersOf(planAt, shapesAt, numbersAt));
      if (code) {
        wrong = wrongText(given, code);
        continue;
      }
      given.forEach((port) => requireArray(port, dataOf(own(inputs, port.name))));
      const outputs = variant.outputs.map((port) => {
        const at = BigInt(port.shape.byteOffset);
        this.#functions.extentsOf(planAt, BigInt(port.number), numbersAt, at);
        return sizedTo(port, Array.from(port.shape, Number));
      });
      return {variant, inputs: given, outputs};
    }
    throw new TypeError(wrong);
  }
}

function requireInputs(ports, inputs) {
  const known = ports.map(({name}) => name), other = Object.keys(inputs).find((n) => !known.includes(n));
  for (const name of known)
    if (own(inputs, name) === undefined) throw new TypeError(`input '${name}' is missing`);
  if (other !== undefined)
    throw new TypeError(`there is no input '${other}', but ${known.join(", ") || "none"}`);
}

const callOf = (variant) => ({variant, inputs: variant.inputs, outputs: variant.outputs});
const product = (extents) => extents.reduce((a, b) => a * b, 1);
const sizedTo = (port, dims) => ({...port, dims, count: product(dims)});

// The shape of an input: as given, or that of so many elements where one dimension has a length.
function dimsOf(port, given) {
  const data = dataOf(given);
  if (given?.dims !== undefined) {
    const dims = Array.from(given.dims, Number);
    if (dims.every(Number.isInteger)) return dims;
    throw new TypeError(`${shapeText(port)}, not [${dims}]`);
  }
  const open = port.extents.flatMap((extent, axis) => extent.text === undefined ? [] : [axis]);
  if (!open.length) return port.dims;
  if (open.length > 1) throw new TypeError(`${shapeText(port)}: give {data, dims}`);
  const others = product(port.dims.filter((_, axis) => axis !== open[0]));
  if (data?.length % others !== 0)
    throw new TypeError(`${shapeText(port)} has not ${data?.length} elements`);
  return port.dims.map((extent, axis) => axis === open[0] ? data.length / others : extent);
}

function wrongText(ports, code) {
  const [reason, at] = [code % 8, Math.floor(code / 8)], axis = at % 64;
  const port = ports[Math.floor(at / 64)], {text, least, most, step} = port.extents[axis];
  const where = `input '${port.name}' has ${port.dims[axis]} in dimension ${axis} (${text})`;
  return [, `${shapeText(port)}, not [${port.dims}]`, `${where}, at most ${most} are possible`,
          `${where}, at least ${least} are needed`, `${where}, whose steps are of ${step}`,
          `${where}, about which inputs disagree`][reason];
}

const shapeText = ({name, array, extents}) =>
  `input '${name}' ${array} is of shape [${extents.map((extent) => extent.text ?? extent)}]`;

// Arrays of a call --------------------------------------------------------------------------------

// What an object has of its own: all have a `constructor` and a `toString`.
const own = (object, name) => object != null && Object.hasOwn(object, name) ? object[name] : undefined;
const dataOf = (input) => ArrayBuffer.isView(input) ? input : input?.data;
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

// Halves are widened where they lie: behind one another in the second half of their place.
function write({view, kind, count, functions}, data) {
  if (kind === PLAIN) return view.set(data);
  const {buffer, byteOffset: to} = view, from = to + 2 * count;
  new Uint16Array(buffer, from, count).set(data);
  functions.widen(BigInt(kind), BigInt(count), BigInt(from), BigInt(to));
}

function read({view, kind, count, functions}, data) {
  if (kind === PLAIN) return data.set(view.subarray(0, count));
  const {buffer, byteOffset: at} = view;
  functions.narrow(BigInt(kind), BigInt(count), BigInt(at), BigInt(at));
  data.set(new Uint16Array(buffer, at, count));
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
