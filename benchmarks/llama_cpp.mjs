// Seconds of prompts and of single tokens in llama.cpp, as JSON: see llama_cpp.py.
// node llama_cpp.mjs MODEL.gguf THREADS PROMPT TOKENS ROUNDS
import { getLlama } from "node-llama-cpp";

const [path, threads, prompt, tokens, rounds] = process.argv
  .slice(2)
  .map((word, n) => (n ? Number(word) : word));
const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads });
const model = await llama.loadModel({ modelPath: path });
const context = await model.createContext({
  contextSize: prompt + tokens + 8,
  batchSize: Math.min(512, prompt),
  threads,
});
const sequence = context.getSequence();
const words = Array.from({ length: prompt }, (_, n) => 1 + ((n * 37) % 99));
const found = [];
for (let n = 0; n <= rounds; n++) {
  await sequence.clearHistory();
  const times = [];
  let begun = performance.now();
  for await (const token of sequence.evaluate(words, { temperature: 0, yieldEogToken: true })) {
    times.push((performance.now() - begun) / 1e3);
    if (times.length > tokens) break;
    begun = performance.now();
  }
  if (n) found.push(times);
}
console.log(JSON.stringify(found));
process.exit(0);
