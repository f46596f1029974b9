// @name@: @model@, compiled by autotune @version@ for WebAssembly.
//
//   import {create} from "./@name@.mjs";
//   const model = await create();
//   @call@

const files = {
  wasm: new URL("./@name@.wasm", import.meta.url),
  weights: @weights@,
  worker: @worker@,
};

const network = @network@;
