// Tokens that an exported decoder finds likeliest, one after another; the worker `tokens_worker.mjs`
// computes, so that the page stays responsive.
//
// tokens.html?prompt=3,1,4&n=20 begins with these tokens and adds 20.

const query = new URLSearchParams(location.search);
const prompt = (query.get("prompt") ?? "1,2,3").split(",").map(Number), n = Number(query.get("n") ?? 20);
const worker = new Worker(new URL("./tokens_worker.mjs", import.meta.url), {type: "module"});
const at = (id) => document.getElementById(id);

function show(token, kind) {
  const item = document.createElement("li");
  item.className = kind;
  item.textContent = token;
  at("tokens").append(item);
}

worker.onmessage = ({data: {token, status}}) => {
  if (token !== undefined) show(token, "found");
  if (status !== undefined) at("status").textContent = status;
};
worker.onerror = ({message}) => { at("status").textContent = message; };
for (const token of prompt) show(token, "given");
worker.postMessage({prompt, n});
