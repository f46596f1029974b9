"""A text transformer of a few thousand weights, as exporters write them."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from tests.graph.onnx_models import model, node

N_WORDS, N_POSITIONS, LENGTH, SIZE, HEADS = 50, 30, 12, 32, 2
WIDTH = SIZE // HEADS


def text_transformer(seed: np.random.Generator | int = 0) -> ModelProto:
    """Embeddings of words and of positions that count words, a layer of attention, the best word.

    The mask hides keys as exporters write it; positions are a running sum of it, as in RoBERTa.
    """
    rng = np.random.default_rng(seed)
    weights = {"words": (N_WORDS, SIZE), "positions": (N_POSITIONS, SIZE), "back": (SIZE, N_WORDS)}
    weights |= dict.fromkeys(("q", "k", "v", "o"), (SIZE, SIZE))
    constants: dict[str, object] = {
        name: (rng.standard_normal(shape) / np.sqrt(SIZE)).astype(np.float32)
        for name, shape in weights.items()
    }
    constants |= {"scale": np.ones(SIZE, np.float32), "shift": np.zeros(SIZE, np.float32)}
    constants |= {"lowest": np.float32(-3.4e38), "zero": np.float32(0), "one": np.array(1)}
    constants |= {"root": np.float32(WIDTH**-0.5), "none": np.array(0), "axes": np.array([1, 2])}
    constants |= {
        "heads": np.array([1, LENGTH, HEADS, WIDTH]),
        "whole": np.array([1, LENGTH, SIZE]),
    }
    nodes = [
        node("Gather", "words input_ids", "word"),
        node("CumSum", "attention_mask one", "count"),
        node("Mul", "count attention_mask", "place"),
        node("Gather", "positions place", "position"),
        node("Add", "word position", "sum"),
        node("LayerNormalization", "sum scale shift", "h"),
        node("Equal", "attention_mask none", "hidden"),
        node("Unsqueeze", "hidden axes", "keys"),
    ]
    for name in ("q", "k", "v"):
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(node("MatMul", f"h {name}", f"{name}.rows"))
        nodes.append(node("Reshape", f"{name}.rows heads", f"{name}.split"))
        nodes.append(node("Transpose", f"{name}.split", f"{name}.heads", perm=perm))
    nodes += [
        node("MatMul", "q.heads k.heads", "scores"),
        node("Mul", "scores root", "scaled"),
        node("Where", "keys lowest scaled", "masked"),
        node("Softmax", "masked", "soft"),
        node("IsNaN", "soft", "nan"),
        node("Where", "nan zero soft", "share"),
        node("MatMul", "share v.heads", "mixed"),
        node("Transpose", "mixed", "rows", perm=[0, 2, 1, 3]),
        node("Reshape", "rows whole", "joined"),
        node("MatMul", "joined o", "out"),
        node("Add", "out h", "hidden_state"),
        node("MatMul", "hidden_state back", "logits"),
        node("ArgMax", "logits", "best", axis=-1, keepdims=0),
    ]
    ports = dict.fromkeys(("input_ids", "attention_mask"), (1, LENGTH))
    types = {**dict.fromkeys(ports, "int64"), "best": "int64"}
    return model(nodes, ports, constants, "hidden_state best", types=types)
