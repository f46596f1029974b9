// A thread of a model: `create` starts such workers.

import {assist} from "./NAME.mjs";

if (globalThis.WorkerGlobalScope)
  globalThis.onmessage = ({data}) => assist(data, () => globalThis.postMessage("begins"));
else
  import("node:worker_threads").then(({parentPort}) =>
      parentPort.on("message", (data) => assist(data, () => parentPort.postMessage("begins"))));
