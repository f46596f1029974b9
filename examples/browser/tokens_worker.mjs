// Runs the decoder for `tokens.mjs`: the session keeps keys and values, so a step takes new tokens only.

import {create, signature} from "./decoder/decoder.mjs";

const [{name: ids}] = signature.inputs, [{name: scores}] = signature.outputs;

onmessage = async ({data: {prompt, n}}) => {
  const model = await create(), session = model.session();
  let tokens = prompt;
  const begin = performance.now();
  for (let k = 0; k < n; k++) {
    const row = session.step({[ids]: BigInt64Array.from(tokens, BigInt)})[scores];
    tokens = [row.indexOf(row.reduce((a, b) => Math.max(a, b)))];
    postMessage({token: tokens[0]});
  }
  const seconds = (performance.now() - begin) / 1000;
  postMessage({status: `${(n / seconds).toFixed(0)} tokens a second on ${model.threads} threads`});
};
