// One model in two engines, in turns, in Node or in a page: see `web.py`.
//
//   beside({name, inputs: [{name, file, dtype, dims}], rounds, repeats})

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array,
  int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
};
const isNode = typeof process !== "undefined" && process.versions?.node;

async function bytesOf(file) {
  const url = new URL(file, import.meta.url);
  if (isNode) return (await import("node:fs/promises")).readFile(url);
  return (await fetch(url)).arrayBuffer();
}

async function inputsOf(listed) {
  return Promise.all(listed.map(async (each) => {
    const {buffer, byteOffset = 0, byteLength} = new Uint8Array(await bytesOf(each.file));
    return {...each, data: new ARRAYS[each.dtype](buffer.slice(byteOffset, byteOffset + byteLength))};
  }));
}

async function ours({name}, inputs) {
  const begin = performance.now();
  const {create} = await import(`./${name}/${name}.mjs`);
  const model = await create();
  const given = Object.fromEntries(inputs.map(({name, data}) => [name, data]));
  return {begin, run: () => model.run(given)};
}

async function theirs({name}, inputs) {
  const begin = performance.now();
  const ort = await import(`./ort/${isNode ? "ort.node.min.mjs" : "ort.wasm.min.mjs"}`);
  ort.env.wasm.numThreads = 1;
  if (!isNode) ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
  const session = await ort.InferenceSession.create(new Uint8Array(await bytesOf(`${name}.onnx`)), {
    executionProviders: ["wasm"], graphOptimizationLevel: "all",
  });
  const given = Object.fromEntries(inputs.map(
      ({name, dtype, data, dims}) => [name, new ort.Tensor(dtype, data, dims)]));
  return {begin, async run() {
    const found = await session.run(given);
    return Object.fromEntries(Object.entries(found).map(([name, {data}]) => [name, data]));
  }};
}

function difference(expected, found) {
  let most = 0, worst = 0;
  for (const [name, array] of Object.entries(expected))
    array.forEach((value, n) => {
      most = Math.max(most, Math.abs(Number(value)));
      worst = Math.max(worst, Math.abs(Number(value) - Number(found[name][n])));
    });
  return worst / most;
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

/** Milliseconds of both: from the import to the first result, and of one inference by round. */
export async function beside(plan) {
  const inputs = await inputsOf(plan.inputs), sides = [];
  for (const make of [ours, theirs]) {
    const side = await make(plan, inputs);
    const outputs = await side.run();
    sides.push({...side, outputs, first: performance.now() - side.begin, times: []});
  }
  for (let round = -1; round < plan.rounds; round++)  // the first one warms up
    for (const side of sides) {
      const times = [];
      for (let n = 0; n < plan.repeats; n++) {
        const begin = performance.now();
        const made = side.run();
        if (made instanceof Promise) await made;
        times.push(performance.now() - begin);
      }
      if (round >= 0) side.times.push(median(times));
    }
  const [us, them] = sides;
  return {
    first: sides.map(({first}) => first), times: sides.map(({times}) => times),
    difference: difference(them.outputs, us.outputs),
    engine: isNode ? `Node ${isNode}` : navigator.userAgent.match(/\w*Chrome\/\S+/)?.[0],
  };
}
