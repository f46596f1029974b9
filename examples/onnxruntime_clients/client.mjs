// The same as client.cc from Node: onnxruntime-node brings ONNX Runtime, but its binding registers no
// providers, so `koffi` calls the C API of its library.
//
//   npm install onnxruntime-node koffi
//   node client.mjs PROVIDER MODEL STEPS [NAME TYPE DIMS FILE]...
import {createRequire} from "node:module";
import {readFileSync, writeFileSync} from "node:fs";
import {dirname, join} from "node:path";

const require = createRequire(join(process.cwd(), "client.mjs"));
const koffi = require("koffi");
const bin = join(dirname(require.resolve("onnxruntime-node/package.json")), "bin/napi-v6");
const library = koffi.load(join(bin, process.platform, process.arch, "libonnxruntime.so.1"));

// Places of functions in the table of ONNX Runtime, which never change.
const base = koffi.decode(library.func("void *OrtGetApiBase()")(), koffi.array("void *", 2));
const table = koffi.decode(koffi.call(base[0], koffi.proto("void *GetApi(uint32_t version)"), 23),
                           koffi.array("void *", 319));
const take = (place, name, args, result = "void *") =>
  (...given) => koffi.call(table[place], protos[name] ??= koffi.proto(`${result} ${name}(${args})`), ...given);
const protos = {};
const message = take(2, "message", "void *s", "const char *");
const status = (place, name, args) => {
  const call = take(place, name, args);
  return (...given) => {
    const told = call(...given);
    if (told) throw new Error(message(told));
  };
};
const api = {
  env: status(3, "env", "int level, const char *name, _Out_ void **made"),
  register: status(301, "register", "void *env, const char *name, const char *path"),
  devices: status(303, "devices", "void *env, _Out_ void **found, _Out_ size_t *n"),
  device: take(312, "device", "void *device", "const char *"),
  options: status(10, "options", "_Out_ void **made"),
  append: status(304, "append", "void *options, void *env, void **devices, size_t n, void *k, void *v, size_t m"),
  session: status(7, "session", "void *env, const char *path, void *options, _Out_ void **made"),
  memory: status(69, "memory", "int kind, int type, _Out_ void **made"),
  allocator: status(78, "allocator", "_Out_ void **found"),
  tensor: status(49, "tensor", "void *m, void *data, size_t size, int64_t *dims, size_t rank, int type, _Out_ void **v"),
  data: status(51, "data", "void *value, _Out_ void **found"),
  count: status(31, "count", "void *session, _Out_ size_t *n"),
  name: status(37, "name", "void *session, size_t n, void *allocator, _Out_ void **found"),
  binding: status(134, "binding", "void *session, _Out_ void **made"),
  input: status(136, "input", "void *binding, const char *name, void *value"),
  output: status(138, "output", "void *binding, const char *name, void *memory"),
  run: status(133, "run", "void *session, void *options, void *binding"),
  outputs: status(140, "outputs", "void *binding, void *allocator, _Out_ void **values, _Out_ size_t *n"),
  type: status(65, "type", "void *value, _Out_ void **info"),
  rank: status(61, "rank", "void *info, _Out_ size_t *n"),
  extents: status(62, "extents", "void *info, _Out_ int64_t *found, size_t n"),
  size: status(318, "size", "void *value, _Out_ size_t *n"),
};
const made = (call, ...given) => {
  const found = [null];
  call(...given, found);
  return found[0];
};

function opened(provider, model) {
  const env = made(api.env, 3, "client"), [found, n] = [[null], [0]];
  api.register(env, "autotune", provider);
  api.devices(env, found, n);
  const all = koffi.decode(found[0], koffi.array("void *", Number(n[0])));
  const ours = all.filter((device) => api.device(device) === "AutotuneExecutionProvider");
  const options = made(api.options);
  api.append(options, env, ours, ours.length, null, null, 0);
  return made(api.session, env, model, options);
}

const [provider, model, steps, ...words] = process.argv.slice(2);
const session = opened(provider, model), memory = made(api.memory, 1, 0), allocator = made(api.allocator);
const given = {}, kept = [], names = [];
for (let n = 0; n + 3 < words.length; n += 4) {
  const data = readFileSync(words[n + 3]), dims = words[n + 2].split("x").map(BigInt);
  kept.push(data); // ONNX Runtime reads these bytes
  given[words[n]] = made(api.tensor, memory, data, data.length, dims, dims.length, words[n + 1] === "float" ? 1 : 7);
}
for (let n = 0; n < Number(made(api.count, session)); n++)
  names.push(koffi.decode(made(api.name, session, n, allocator), "char", -1));

let values = [];
for (let step = 0; step < Number(steps); step++) {
  const binding = made(api.binding, session), [found, n] = [[null], [0]];
  for (const [name, value] of Object.entries(given)) api.input(binding, name, value);
  for (const name of names) api.output(binding, name, memory);
  api.run(session, null, binding);
  api.outputs(binding, allocator, found, n);
  values = koffi.decode(found[0], koffi.array("void *", Number(n[0])));
  names.forEach((name, k) => {
    if (name.startsWith("present")) given[name.replace("present", "past")] = values[k];
  });
}
values.forEach((value, k) => {
  const info = made(api.type, value), rank = Number(made(api.rank, info)), extents = new Array(rank).fill(0);
  api.extents(info, extents, rank);
  const size = Number(made(api.size, value));
  writeFileSync(`${k}.out`, Buffer.from(koffi.view(made(api.data, value), size)));
  console.log([names[k], ...extents].join(" "));
});
