// Classifies pictures by the exported model, and shows the five likeliest classes.
//
// index.html?picture=cat.png classifies that one.

import {create, signature} from "./classifier/classifier.mjs";

const MEAN = [127 / 255, 127 / 255, 127 / 255], DEVIATION = [128 / 255, 128 / 255, 128 / 255];
const TOP = 5;
const [input] = signature.inputs, [output] = signature.outputs;
const [, , height, width] = input.shapes[0];
const at = (id) => document.getElementById(id);

// The middle of a picture as numbers: channels, rows, columns
function tensorOf(picture) {
  const context = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  const scale = Math.max(width / picture.width, height / picture.height);
  const w = picture.width * scale, h = picture.height * scale;
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, (width - w) / 2, (height - h) / 2, w, h);
  const {data} = context.getImageData(0, 0, width, height), n = width * height;
  return Float32Array.from({length: 3 * n}, (_, at) => {
    const channel = Math.floor(at / n);
    return (data[4 * (at % n) + channel] / 255 - MEAN[channel]) / DEVIATION[channel];
  });
}

function probabilities(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b));
  const powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

function show(shares, labels) {
  const best = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, TOP);
  at("classes").replaceChildren(...best.map((n) => {
    const row = at("row").content.cloneNode(true);
    row.querySelector("span").textContent = labels[n] ?? `class ${n}`;
    row.querySelector("meter").value = shares[n];
    row.querySelector("data").textContent = `${(100 * shares[n]).toFixed(1)} %`;
    return row;
  }));
}

async function start() {
  at("status").textContent = "loading the model …";
  const labels = await fetch("labels.json").then((found) => found.ok ? found.json() : []);
  const model = await create();
  const classify = async (blob) => {
    at("picture").src = URL.createObjectURL(blob);
    const tensor = tensorOf(await createImageBitmap(blob)), begin = performance.now();
    const scores = model.run({[input.name]: tensor})[output.name];
    at("status").textContent = `${(performance.now() - begin).toFixed(1)} ms on one core`;
    show(probabilities(scores), labels);
  };
  const tell = (error) => at("status").textContent = `${error}`;
  const take = (files) => files[0] && classify(files[0]).catch(tell);
  at("file").onchange = ({target}) => take(target.files);
  document.ondragover = (event) => event.preventDefault();
  document.ondrop = (event) => (event.preventDefault(), take(event.dataTransfer.files));
  document.onpaste = (event) => take(event.clipboardData.files);
  at("status").textContent = "ready: nothing leaves this machine";
  const picture = new URLSearchParams(location.search).get("picture");
  if (picture) await classify(await fetch(picture).then((found) => found.blob()));
}

start().catch((error) => at("status").textContent = `${error}`);
