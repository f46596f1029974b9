"""RWKV 7 by the formulas of its paper (arXiv 2503.14456), which transformers 5.24 does not have.

    model = rwkv7(n_layers=12)      a module of PyTorch, with seeded weights
    model(ids, cache=model.fresh())  `logits` and `cache`, as models of transformers return them

States of a layer have fixed shapes: the last rows in front of both mixings, (1, width) each, and
the matrices of the heads, (1, heads, size, size).
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

HEADS, SIZE, RANK = 4, 8, 6
WIDTH = HEADS * SIZE
_MIXED = ("r", "w", "k", "v", "a", "g")
_EPSILON = 64e-5
"""Of the normalisation of heads."""


def rwkv7(vocabulary: int, n_layers: int) -> Any:
    """The model, one of PyTorch's modules."""
    torch: Any = import_module("torch")
    functional: Any = import_module("torch.nn.functional")

    def linear(n_in: int, n_out: int) -> Any:
        return torch.nn.Linear(n_in, n_out, bias=False)

    def row(mean: float = 0.5) -> Any:
        return torch.nn.Parameter(mean + 0.2 * torch.randn(WIDTH))

    def narrow() -> Any:
        return torch.nn.Sequential(linear(WIDTH, RANK), linear(RANK, WIDTH))

    class TimeMixing(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mix = torch.nn.ParameterList(row() for _ in _MIXED)
            self.of = torch.nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(4))
            self.w, self.a, self.v, self.g = narrow(), narrow(), narrow(), narrow()
            self.w0, self.a0, self.v0 = row(-1.0), row(0.0), row(0.0)
            self.k_k, self.k_a, self.r_k = row(0.8), row(1.0), row(0.0)
            self.norm = torch.nn.GroupNorm(HEADS, WIDTH, _EPSILON)

        def forward(self, x: Any, last: Any, state: Any, first: Any) -> Any:
            """One place: x and last (1, width), state (1, heads, size, size)."""
            mixed = {n: x + (last - x) * m for n, m in zip(_MIXED, self.mix, strict=True)}
            r, k, v = (of(mixed[n]) for of, n in zip(self.of, "rkv", strict=False))
            decay = self.w0 + self.w[1](self.w[0](mixed["w"]).tanh())
            decay = torch.exp(-0.606531 * decay.sigmoid())
            a = (self.a0 + self.a(mixed["a"])).sigmoid()
            g = self.g[1](self.g[0](mixed["g"]).sigmoid())
            if first is not None:
                v = v + (first - v) * (self.v0 + self.v(mixed["v"])).sigmoid()
            kk = functional.normalize((k * self.k_k).view(1, HEADS, SIZE), dim=-1)
            k = k * (1 + (a - 1) * self.k_a)
            rows = [t.view(1, HEADS, 1, SIZE) for t in (r, decay, k, kk, kk.view(1, -1) * a)]
            of_r, of_decay, of_k, of_kk, of_ka = rows
            columns = v.view(1, HEADS, SIZE, 1)
            removed = state @ (-of_kk.transpose(2, 3)) @ of_ka
            state = state * of_decay + removed + columns @ of_k
            y = self.norm((state @ of_r.transpose(2, 3)).reshape(1, WIDTH))
            own = (r * k * self.r_k).view(1, HEADS, SIZE).sum(-1, keepdim=True)
            y = y + (own * v.view(1, HEADS, SIZE)).reshape(1, WIDTH)
            return self.of[3](y * g), state, v if first is None else first

    class ChannelMixing(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mix = row()
            self.wide, self.narrow = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any, last: Any) -> Any:
            return self.narrow(self.wide(x + (last - x) * self.mix).relu() ** 2)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(vocabulary, WIDTH)
            self.times = torch.nn.ModuleList(TimeMixing() for _ in range(n_layers))
            self.channels = torch.nn.ModuleList(ChannelMixing() for _ in range(n_layers))
            norms = (torch.nn.LayerNorm(WIDTH) for _ in range(2 * n_layers + 2))
            self.norms = torch.nn.ModuleList(norms)
            self.scores = linear(WIDTH, vocabulary)

        def fresh(self) -> Any:
            """The states in front of a text."""
            return SimpleNamespace(layers=[_Layer(torch) for _ in range(n_layers)])

        def forward(
            self,
            input_ids: Any,
            attention_mask: Any = None,
            use_cache: bool = True,
            cache: Any = None,
        ) -> Any:
            places = [self.place(ids, cache) for ids in input_ids.unbind(1)]
            return _Result(logits=torch.stack(places, 1), cache=cache)

        def place(self, ids: Any, cache: Any) -> Any:
            """Scores behind one token (1), and the states behind it in `cache`."""
            x, first = self.norms[-1](self.table(ids)), None
            for n, layer in enumerate(cache.layers):
                given = self.norms[2 * n](x)
                states = layer.conv_states, layer.recurrent_states
                y, states[1][0], first = self.times[n](given, states[0][0], states[1][0], first)
                states[0][0], x = given, x + y
                given = self.norms[2 * n + 1](x)
                x = x + self.channels[n](given, states[0][1])
                states[0][1] = given
            return self.scores(self.norms[-2](x))

    return Model()


class _Result(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class _Layer:
    """States of a layer, as caches of transformers have them."""

    def __init__(self, torch: Any) -> None:
        self.conv_states = {n: torch.zeros(1, WIDTH) for n in range(2)}
        self.recurrent_states = {0: torch.zeros(1, HEADS, SIZE, SIZE)}
        self.is_conv_states_initialized: dict[int, bool] = {}
        self.is_recurrent_states_initialized: dict[int, bool] = {}
        self.has_previous_state: dict[int, bool] = {}
        self.conv_kernel_size: dict[int, int] = {}
