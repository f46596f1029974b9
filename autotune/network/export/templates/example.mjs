// npm install koffi && node example.mjs

import koffi from "koffi";

const library = koffi.load(new URL("lib@name@.so", import.meta.url).pathname);
const create = library.func("int @name@_create(void *options, _Out_ void **model)");
const run = library.func("int @name@_run(void *model, void *inputs, void *outputs)");
const destroy = library.func("void @name@_destroy(void *model)");
const strerror = library.func("const char *@name@_strerror(int status)");

function require(status) {
  if (status) throw new Error(strerror(status));
}

// Fields of the records: addresses of arrays, and shapes where variants differ in them.
function record(...fields) {
  const word = (x) => (ArrayBuffer.isView(x) ? koffi.address(x) : BigInt(x));
  return BigInt64Array.from(fields.map(word));
}

@arrays@const model = [null];
require(create(null, model));
require(run(model[0], record(@given@), record(@made@)));
@shown@destroy(model[0]);
