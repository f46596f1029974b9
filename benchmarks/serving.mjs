// Streams of tokens in llama.cpp, a line of JSON for each number of them: see serving.py.
// node serving.mjs MODEL.gguf THREADS PAST STREAMS,… TOKENS
import { readFileSync } from "fs";
import { getLlama } from "node-llama-cpp";

const [path, threads, past, streams, tokens] = process.argv
  .slice(2)
  .map((word, n) => (n === 0 ? word : word.split(",").map(Number)));
const words = (k) => Array.from({ length: past[0] }, (_, n) => 1 + ((n * 37 + k * 11) % 9999));
const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads[0] });
const model = await llama.loadModel({ modelPath: path });
for (const count of streams) {
  const context = await model.createContext({
    contextSize: past[0] + tokens[0] + 8,
    sequences: count,
    batchSize: Math.min(512, Math.max(past[0], count)),
    threads: threads[0],
  });
  const texts = [];
  let first = 0;
  for (let k = 0; k < count; k++) {
    const sequence = context.getSequence();
    const begun = performance.now();
    const text = sequence.evaluate(words(k), { temperature: 0, yieldEogToken: true });
    texts.push(text[Symbol.asyncIterator]());
    await texts[k].next();
    if (!k) first = (performance.now() - begun) / 1e3;
  }
  const steps = [];
  for (let n = 0; n < tokens[0] - 2; n++) {
    const begun = performance.now();
    await Promise.all(texts.map((text) => text.next()));
    steps.push((performance.now() - begun) / 1e3);
  }
  const kib = Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]);
  console.log(JSON.stringify({ streams: count, first, steps, mib: kib >> 10 }));
  await context.dispose();
}
process.exit(0);
