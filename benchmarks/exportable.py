"""Parts of models that exporters of PyTorch have no operators for, written by those they have.

    model = exportable(model)        computes what it did; for `torch.onnx.export`

Rotary angles as complex numbers (Llama 4) become pairs of numbers; frequencies that follow the
length of the text (dynamic NTK) are computed, where transformers decides in Python. The triangular
systems of the gated delta rule, which transformers solves row by row for exporters, are solved by
products.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def exportable(model: Any) -> Any:
    """The model, changed in place."""
    for name, module in [*model.named_modules()]:
        if type(module).__name__ == "Llama4TextRotaryEmbedding":
            llama4: Any = import_module(type(module).__module__)
            module.forward = _Pairs(module).angles
            llama4.apply_rotary_emb = _turned
        elif type(module).__name__.endswith("GatedDeltaNet"):
            by_rows: Any = import_module(type(module).__module__)
            by_rows.is_torchdynamo_exporting = lambda: False
            linalg: Any = import_module("torch.linalg")
            linalg.solve_triangular = _solved
        elif getattr(module, "rope_type", "") == "dynamic":
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _by_length(module.config))
    return model


def _solved(a: Any, b: Any, *, upper: bool, unitriangular: bool) -> Any:
    """x of (1 + L)·x = b with the strictly lower half L of `a`, (…, n, n): Π (1 + (-L)^(2^k))·b."""
    power, n = -a.tril(-1), 1
    while n < a.shape[-1]:
        b, power, n = b + power @ b, power @ power, 2 * n
    return b


class _Pairs:
    def __init__(self, rotary: Any) -> None:
        self.rotary = rotary

    def angles(self, x: Any, position_ids: Any) -> Any:
        """Cosines and sines, (batch, places, pairs, 2)."""
        torch: Any = import_module("torch")
        angle = position_ids[..., None].float() * self.rotary.inv_freq
        return torch.stack([angle.cos(), angle.sin()], -1) * self.rotary.attention_scaling


def _turned(xq: Any, xk: Any, angles: Any) -> tuple[Any, Any]:
    """Queries and keys (batch, places, heads, size) whose pairs are turned."""
    torch: Any = import_module("torch")
    cos, sin = angles[:, :, None, :, 0], angles[:, :, None, :, 1]

    def one(x: Any) -> Any:
        a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3).type_as(x)

    return one(xq), one(xk)


def _by_length(config: Any) -> Any:
    torch: Any = import_module("torch")
    of_length = import_module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS["dynamic"]

    class Rotary(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, position_ids: Any) -> tuple[Any, Any]:
            frequencies, scale = of_length(config, x.device, seq_len=position_ids.max() + 1)
            angle = position_ids[..., None].float() * frequencies
            both = torch.cat([angle, angle], -1)
            return both.cos() * scale, both.sin() * scale

    return Rotary()
