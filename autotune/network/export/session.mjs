// Sessions: a state that stays in place -------------------------------------------------------------

const {state} = network;

/** A sequence with a state of its own: `model.session()`. */
export class Session {
  #inside; #filled; #turn = 0; #hasBegun = !state.begin.length;

  constructor(inside) {
    this.#inside = inside;
    this.#filled = new BigInt64Array(inside.buffer, inside.at + state.bytes, 1);
    this.reset();
  }

  /** Places that the state has. */
  get length() {
    return Number(this.#filled[0]);
  }

  /** Forget all places; what `begin` was given stays. */
  reset() {
    this.#filled[0] = 0n;
    this.#turn = 0;
    for (const {kind, at, size} of state.inputs)
      if (kind === "OLD") new Uint8Array(this.#inside.buffer, this.#inside.at + at, size).fill(0);
  }

  /** Give the room back, for another session. */
  close() {
    this.#inside.give();
    this.#inside = undefined;
  }

  /** What an encoder gives, once for a sequence. */
  begin(inputs) {
    const variant = this.#inside.variants.at(-1), given = {kind: "GIVEN", size: 0};
    requireInputs(variant.inputs, inputs);
    for (const port of variant.inputs) write(port, fixed(port, dataOf(inputs[port.name])));
    this.#compute(variant, 0, [...variant.inputs.map(() => given), ...state.begin]);
    this.reset();
    this.#hasBegun = true;
  }

  /** As many places as the inputs have: outputs of all of them, or of the last one. */
  step(inputs) {
    if (!this.#hasBegun) throw new Error("no sequence has begun: call begin()");
    const first = this.#inside.variants[state.steps[0][0]];
    requireInputs(givenOf(first.inputs, state.inputs).map(({port}) => port), inputs);
    const n = placesOf(first, inputs), found = {};
    if (state.capacity && n > state.capacity - this.length)
      throw new RangeError(`the state has ${this.length} of ${state.capacity} places, no room for ${n}`);
    let done = 0;
    for (const [number, some] of stepsOf(n)) {
      const variant = this.#inside.variants[number];
      for (const {port, each} of givenOf(variant.inputs, state.inputs)) {
        const data = dataOf(inputs[port.name]);
        write(port, each ? data.subarray(done * each, (done + some) * each) : data);
      }
      this.#compute(variant, some, [...state.inputs, ...state.outputs]);
      for (const {port, each} of givenOf(variant.outputs, state.outputs)) {
        const to = found[port.name] ??= new globalThis[port.array](each ? n * each : port.count);
        if (each) read({...port, count: some * each}, to.subarray(done * each));
        else read(port, to);
      }
      if (state.capacity) this.#filled[0] += BigInt(some);
      this.#turn = 1 - this.#turn;
      done += some;
    }
    return found;
  }

  // Addresses of the ports, in their order; numbers; and the call.
  #compute(variant, some, parts) {
    const {at: begin} = this.#inside, places = {
      GIVEN: (_, k) => variant.arrays[k],
      LENGTH: () => begin + state.bytes,
      ROWS: ({at, size}) => begin + at + this.length * size,
      OLD: ({at, size}) => begin + at + (this.#turn ? size : 0),
      NEW: ({at, size}) => begin + at + (this.#turn ? 0 : size),
    };
    variant.numbers.fill(BigInt(some));
    parts.forEach((part, k) => {
      const place = places[part.kind] ?? (({at}) => begin + at);
      variant.addresses[k] = BigInt(place(part, k));
    });
    this.#inside.compute(variant);
  }
}

// Ports that are arrays of the caller's, with elements of a place; 0 where they have no places.
const givenOf = (ports, parts) => ports.flatMap((port, k) => parts[k].kind !== "GIVEN" ? [] :
  [{port, each: parts[k].size / globalThis[port.array].BYTES_PER_ELEMENT}]);

// How many places inputs have; 1 where they have none.
function placesOf(variant, inputs) {
  const counts = givenOf(variant.inputs, state.inputs).flatMap(({port, each}) => {
    const data = dataOf(inputs[port.name]), name = data?.constructor?.name;
    if (!each) return fixed(port, data) && [];
    if (name !== port.array) throw new TypeError(`${textOf(port)}, not ${name}`);
    return [data.length / each];
  });
  if (counts.some((n) => !Number.isInteger(n) || n < 1 || n !== counts[0]))
    throw new TypeError(`inputs have ${counts.join(" and ")} places`);
  return counts[0] ?? 1;
}

// Variants and places of each, the largest first, that make `n` together.
function stepsOf(n) {
  const found = [];
  let left = n;
  for (const [variant, least, most] of state.steps)
    for (; left >= least; left -= found.at(-1)[1]) found.push([variant, Math.min(left, most)]);
  if (left || (found.length > 1 && !state.joins))
    throw new RangeError(`the network was not compiled for steps of ${n} places`);
  return found;
}

function fixed(port, data) {
  requireArray(port, data);
  return data;
}
