"""Outputs share memory with one another and with inputs just where PyTorch's do."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own
]


@torch.library.custom_op("autotune_views::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """What has no form in ONNX cuts a graph into regions."""
    return x * 2


@twice.register_fake
def _fake(x: Any) -> Any:
    return torch.empty_like(x)


View = Callable[[Any], Any]
WEIGHT = torch.linspace(-1, 1, 48).reshape(8, 6)


def random_view(shape: tuple[int, ...], draw: random.Random) -> View:
    """A function of a tensor of this shape that PyTorch makes a view, if it can."""
    n = len(shape)
    d, e = draw.randrange(n), draw.randrange(n)
    half = max(1, shape[d] // 2)
    order = draw.sample(range(n), n)
    wide = [draw.choice((2, extent)) if extent == 1 else extent for extent in shape]
    views: list[View] = [
        lambda t: t.transpose(d, e),
        lambda t: t.permute(order),
        lambda t: t.narrow(d, shape[d] - half, half),
        lambda t: t.select(d, draw_index) if n > 1 else t[:half],
        lambda t: t.unsqueeze(d),
        lambda t: t.squeeze(),
        lambda t: t.expand(wide),
        lambda t: t.unsqueeze(0).expand(2, *shape),
        lambda t: t.reshape(-1),
        lambda t: t.reshape(shape[0], -1),
        lambda t: t.flatten(),
        lambda t: t.split(half, d)[-1],
        lambda t: t.chunk(2, d)[0],
        lambda t: t.unbind(d)[0] if n > 1 else t,
        lambda t: t.diagonal(0, d, e) if d != e else t,
        lambda t: t.unfold(d, half, 1),
        lambda t: t.movedim(d, e),
        lambda t: t[::2],
        lambda t: t[..., None],
        lambda t: t.contiguous(),
        lambda t: t.detach(),
    ]
    draw_index = draw.randrange(shape[d])
    return draw.choice(views)


def random_program(seed: int) -> Callable[..., Any]:
    """Views of two inputs and of two computed tensors, of which some are written in place."""
    draw = random.Random(seed)
    n_views = draw.randint(3, 9)
    is_cut = draw.random() < 0.4
    changes = draw.choice(("", "", "input", "computed", "view"))
    chains = []
    for _ in range(n_views):
        source, shape = draw.choice([(0, (4, 8)), (1, (2, 3, 4)), (2, (4, 6)), (3, (4, 6))])
        chain: list[View] = []
        for _ in range(draw.randint(0, 3)):
            view = random_view(shape, draw)
            after = view(torch.zeros(shape))
            if after.numel() == 0 or after.ndim == 0 or after.ndim > 5:
                break
            chain.append(view)
            shape = tuple(after.shape)
        chains.append((source, chain))

    def program(x: Any, z: Any) -> Any:
        y = torch.relu(x @ WEIGHT)
        u = torch.ops.autotune_views.twice(y) + 1 if is_cut else y * 2
        if changes == "input":
            x.add_(1)
        elif changes == "computed":
            u.mul_(2)
        elif changes == "view":
            y[1:].t().add_(3)
        found = []
        for source, chain in chains:
            made = (x, z, y, u)[source]
            for view in chain:
                made = view(made)
            found.append(made)
        return tuple(found)

    return program


def strides(tensor: Any) -> list[int]:
    """Those that matter."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for extent, stride in pairs if extent > 1]


def memory(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def relations(tensors: list[Any]) -> list[bool]:
    """Which pairs share memory."""
    return [memory(a) == memory(b) for a, b in combinations(tensors, 2)]


def written(tensors: list[Any]) -> list[list[Any]]:
    """All tensors after each has been written, one after the other."""
    states = []
    for n, tensor in enumerate(tensors):
        if not any(stride == 0 for stride in tensor.stride()) or tensor.numel() < 2:
            tensor.fill_(100 + n)
        else:
            tensor.as_strided((1,), (1,), tensor.storage_offset()).fill_(100 + n)
        states.append([one.clone() for one in tensors])
    return states


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(60))
def test_views_share_memory_as_in_pytorch(seed: int) -> None:
    from autotune.dynamo import backend

    torch.compiler.reset()
    program = random_program(seed)
    ours = torch.compile(program, backend=backend, options={"threads": 1})
    sides = []
    with torch.no_grad():
        for function in (program, ours):
            for _ in range(2):  # the first call is compared with PyTorch's
                x, z = torch.linspace(-2, 2, 32).reshape(4, 8), torch.arange(24.0).reshape(2, 3, 4)
                outputs = function(x, z)
                tensors = [*outputs, x, z]
            shapes = [(t.shape, strides(t), t.dtype) for t in tensors]
            before = [t.clone() for t in tensors]
            sides.append((relations(tensors), shapes, before, written(tensors)))
    theirs, found = sides
    assert found[0] == theirs[0]
    assert found[1] == theirs[1]
    torch.testing.assert_close(found[2], theirs[2])
    torch.testing.assert_close(found[3], theirs[3], rtol=1e-4, atol=1e-4)


def test_the_last_row_alone_is_computed_alone() -> None:
    """A view that nobody can tell from a tensor of its own does not make the network give more."""
    from autotune.dynamo.exporting import ported

    graph = torch.fx.symbolic_trace(lambda x: (x.mul(2)[-1:],))
    made = torch.fx.experimental.proxy_tensor.make_fx(graph)(torch.ones(4, 6))
    found = ported(made, ())
    assert found.views is None
    assert len(found.exported) == 1
