"""A script that was written for ONNX Runtime; the import below is all that was changed.

    python examples/drop_in.py [OUTPUTS.npz]

It makes two small models (a classifier of images, an encoder of texts), looks at their inputs and
outputs, runs batches of images and texts of several lengths, with io bindings, from bytes, from
two threads, and times a call. With `import onnxruntime as ort` it prints and writes the same.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

import autotune as ort

Floats = NDArray[np.float32]

IMAGE, CHANNELS, CLASSES = 16, 8, 10
WORDS, WIDTH, HEADS = 64, 16, 2
LABELS = [f"class {n}" for n in range(CLASSES)]

CLASSIFIER = f"""
<ir_version: 8, opset_import: ["" : 17]>
classifier (float[batch,3,{IMAGE},{IMAGE}] image) => (float[batch,{CLASSES}] probability) {{
  a = Conv <pads = [1,1,1,1], strides = [2,2]> (image, kernel)
  b = Relu (a)
  c = GlobalAveragePool (b)
  d = Flatten (c)
  logits = Gemm (d, head, bias)
  probability = Softmax <axis = 1> (logits)
}}"""

ENCODER = f"""
<ir_version: 8, opset_import: ["" : 17]>
encoder (int64[batch,length] ids, float[batch,length] mask)
    => (float[batch,length,{WIDTH}] states, float[batch,{WIDTH}] pooled) {{
  x = Gather (table, ids)
  q = MatMul (x, wq)
  k = MatMul (x, wk)
  kt = Transpose <perm = [0,2,1]> (k)
  scores = MatMul (q, kt)
  rows = Unsqueeze (mask, one)
  off = Sub (unit, rows)
  hidden = Mul (off, far)
  masked = Add (scores, hidden)
  weights = Softmax <axis = -1> (masked)
  v = MatMul (x, wv)
  mixed = MatMul (weights, v)
  states = Add (x, mixed)
  columns = Unsqueeze (mask, two)
  kept = Mul (states, columns)
  total = ReduceSum <keepdims = 0> (kept, one)
  count = ReduceSum <keepdims = 0> (columns, one)
  pooled = Div (total, count)
}}"""


def with_weights(text: str, **weights: NDArray[np.generic]) -> onnx.ModelProto:
    """The model that `text` describes, over these weights."""
    model = onnx.parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    entry = model.metadata_props.add()
    entry.key, entry.value = "labels", ",".join(LABELS)
    return model


def write_models(folder: Path) -> tuple[Path, Path]:
    """Write both models with random weights."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Floats:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-1]), np.float32)

    classifier = with_weights(
        CLASSIFIER,
        kernel=normal(CHANNELS, 3, 3, 3),
        head=normal(CHANNELS, CLASSES),
        bias=normal(CLASSES),
    )
    encoder = with_weights(
        ENCODER,
        table=normal(WORDS, WIDTH),
        wq=normal(WIDTH, WIDTH),
        wk=normal(WIDTH, WIDTH),
        wv=normal(WIDTH, WIDTH),
        one=np.array([1], np.int64),
        two=np.array([2], np.int64),
        unit=np.array(1, np.float32),
        far=np.array(-1e4, np.float32),
    )
    paths = folder / "classifier.onnx", folder / "encoder.onnx"
    for path, model in zip(paths, (classifier, encoder), strict=True):
        onnx.save(model, path)
    return paths


def make_session(model: Path | bytes) -> ort.InferenceSession:
    """A session as scripts make them: one thread, all optimisations, on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def describe(session: ort.InferenceSession) -> None:
    """Print what goes in and what comes out."""
    meta = session.get_modelmeta()
    print(f"{meta.graph_name}: {len(meta.custom_metadata_map['labels'].split(','))} labels")
    for kind, ports in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for port in ports:
            print(f"  {kind} {port.name}: {port.type} {port.shape}")


def preprocess(pixels: NDArray[np.uint8]) -> Floats:
    """Images of bytes (n, height, width, 3) as the classifier takes them."""
    scaled = pixels.astype(np.float32) / 255
    normal = (scaled - np.float32(0.45)) / np.float32(0.25)
    return np.ascontiguousarray(normal.transpose(0, 3, 1, 2))


def classify(session: ort.InferenceSession, images: Floats, batch: int) -> Floats:
    """Probabilities of all images, `batch` at a time; the last batch may be smaller."""
    name = session.get_inputs()[0].name
    steps = range(0, len(images), batch)
    parts = [session.run(None, {name: images[n : n + batch]})[0] for n in steps]
    return np.concatenate(parts)


@dataclass
class Batch:
    """Texts of one length, filled up with zeros."""

    ids: NDArray[np.int64]
    mask: Floats


def batches(texts: list[list[int]], lengths: tuple[int, ...]) -> Iterator[Batch]:
    """One batch for every length: the texts that need it."""
    shorter = 0
    for length in lengths:
        fitting = [text for text in texts if shorter < len(text) <= length]
        ids = np.zeros((len(fitting), length), np.int64)
        mask = np.zeros((len(fitting), length), np.float32)
        for row, text in enumerate(fitting):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        yield Batch(ids, mask)
        shorter = length


def encode(session: ort.InferenceSession, batch: Batch) -> Floats:
    """One vector for every text."""
    (pooled,) = session.run(["pooled"], {"mask": batch.mask, "ids": batch.ids})
    return np.asarray(pooled)


def encode_bound(session: ort.InferenceSession, batch: Batch) -> tuple[Floats, Floats]:
    """All states, in an array of ours, and the vectors: by an io binding."""
    states = np.empty((*batch.ids.shape, WIDTH), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("ids", batch.ids)
    binding.bind_ortvalue_input("mask", ort.OrtValue.ortvalue_from_numpy(batch.mask))
    binding.bind_output("states", "cpu", 0, np.float32, states.shape, states.ctypes.data)
    binding.bind_output("pooled")
    session.run_with_iobinding(binding)
    return states, binding.copy_outputs_to_cpu()[1]


def side_by_side(sessions: list[ort.InferenceSession], images: Floats) -> list[Floats]:
    """The same images in several sessions at once, each in a thread of its own."""
    results: dict[int, Floats] = {}

    def work(n: int) -> None:
        for _ in range(20):
            results[n] = classify(sessions[n], images, len(images))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[n] for n in range(len(sessions))]


def milliseconds(session: ort.InferenceSession, images: Floats, n_runs: int = 50) -> float:
    """Median time of a call, after a few to warm up."""
    feed = {session.get_inputs()[0].name: images}
    for _ in range(5):
        session.run(None, feed)
    times = []
    for _ in range(n_runs):
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[n_runs // 2]


def refused(session: ort.InferenceSession) -> int:
    """How many of three wrong calls raise an error."""
    good = np.zeros((4, 3, IMAGE, IMAGE), np.float32)
    wrong: list[dict[str, NDArray[Any]]] = [
        {"picture": good},
        {"image": good.astype(np.float64)},
        {"image": good[0]},
    ]
    n_errors = 0
    for feed in wrong:
        try:
            session.run(None, feed)
        except Exception:  # of ONNX Runtime's own types, or of ours
            n_errors += 1
    return n_errors


def main() -> None:
    """Do all of it."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        classifier_path, encoder_path = write_models(Path(folder))
        classifier, encoder = make_session(classifier_path), make_session(encoder_path)
        for session in (classifier, encoder):
            describe(session)
        images = preprocess(rng.integers(0, 256, (10, IMAGE, IMAGE, 3)).astype(np.uint8))
        found = {"probability": classify(classifier, images, 4)}
        print("most likely:", [LABELS[n] for n in found["probability"].argmax(axis=1)][:3])

        texts = [rng.integers(0, WORDS, n).tolist() for n in (3, 9, 5, 7)]
        for batch in batches(texts, (6, 12)):
            length = batch.ids.shape[1]
            found[f"pooled{length}"] = encode(encoder, batch)
            states, pooled = encode_bound(encoder, batch)
            found[f"states{length}"] = states
            assert np.array_equal(pooled, found[f"pooled{length}"])

        again = make_session(classifier_path.read_bytes())
        both = side_by_side([classifier, again], images[:4])
        assert all(np.array_equal(one, both[0]) for one in both)
        print("wrong calls refused:", refused(classifier))
        print(f"a batch of 4 takes {milliseconds(classifier, images[:4]):.3f} ms", file=sys.stderr)
    if sys.argv[1:]:
        np.savez(sys.argv[1], allow_pickle=False, **found)


if __name__ == "__main__":
    main()
