"""The backend of `torch.compile` beside PyTorch itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
functional = torch.nn.functional

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own
]
OPTIONS = {"threads": 1}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def compiled(model: Any, **settings: Any) -> Any:
    from autotune.dynamo import backend

    return torch.compile(model, backend=backend, options=OPTIONS, **settings)


def mlp() -> Any:
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)
    return torch.nn.Sequential(*layers).eval()


def agree(ours: Any, theirs: Any) -> None:
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (ours, theirs)), strict=True):
        if isinstance(b, torch.Tensor):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
            torch.testing.assert_close(
                a, b, rtol=1e-3 if b.dtype != torch.bfloat16 else 2e-2, atol=1e-4
            )
        else:
            assert a == b


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="autotune")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "autotune"]


def test_networks_give_what_pytorch_gives(told: Callable[[], list[str]]) -> None:
    def conv(x: Any) -> Any:
        return torch.relu(functional.conv2d(x, weight, padding=1)).permute(0, 2, 3, 1)

    def several(x: Any) -> Any:
        h = x * 2
        return h, x, h[:, 0], None, (h > 0), h.argmax(-1), h

    weight = torch.randn(8, 3, 3, 3)
    x = torch.randn(2, 3, 9, 9)
    cases: list[tuple[Any, tuple[Any, ...]]] = [
        (mlp(), (torch.randn(4, 16),)),
        (conv, (x,)),
        (conv, (x.to(memory_format=torch.channels_last),)),
        (conv, (torch.randn(2, 3, 9, 18)[..., ::2],)),
        (several, (torch.randn(3, 5),)),
        (lambda x, i: torch.softmax(x, -1)[i], (torch.randn(5, 7), torch.tensor([3, 0]))),
        (lambda x: functional.linear(x, x).bfloat16() * 2, (torch.randn(4, 4),)),
        (lambda x: x.double().sum(0, keepdim=True), (torch.randn(4, 4),)),
        (
            lambda q: functional.scaled_dot_product_attention(q, q + 1, q, is_causal=True),
            (torch.randn(1, 2, 6, 8),),
        ),
    ]
    with torch.inference_mode():
        for function, inputs in cases:
            torch.compiler.reset()
            ours = compiled(function)
            for _ in range(2):
                agree(ours(*inputs), function(*inputs))
    assert told() == []


def test_new_parameters_give_new_results(told: Callable[[], list[str]]) -> None:
    model, x = mlp(), torch.randn(4, 16)
    ours = compiled(model)

    def written() -> None:
        model[0].weight.mul_(2)

    def replaced() -> None:
        model[0].weight = torch.nn.Parameter(torch.randn(32, 16))

    def given_data() -> None:
        model[2].bias.data = torch.randn(8)

    with torch.no_grad():
        agree(ours(x), model(x))
        for change in (written, replaced, given_data):
            change()
            for _ in range(3):
                agree(ours(x), model(x))
    assert len(told()) == 3
    assert all("parameters have changed" in line for line in told())


def test_gradients_are_left_to_pytorch_in_one_line(told: Callable[[], list[str]]) -> None:
    model, x = mlp(), torch.randn(4, 16)
    ours = compiled(model)
    ours(x).sum().backward()
    assert model[0].weight.grad is not None
    (line,) = told()
    assert "gradients are wanted" in line
    assert "\n" not in line


def test_a_module_in_training_changes_its_statistics() -> None:
    x = torch.randn(4, 16)
    ours, theirs = (torch.nn.BatchNorm1d(16) for _ in range(2))
    run = compiled(ours)
    with torch.no_grad():
        for _ in range(3):
            agree(run(x), theirs(x))
    agree(list(ours.buffers()), list(theirs.buffers()))


def test_random_numbers_are_pytorchs(told: Callable[[], list[str]]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.ReLU())
    x = torch.randn(4, 16)
    ours = compiled(model.train())
    with torch.no_grad():
        found = []
        for function in (ours, model):
            torch.manual_seed(1)
            found.append(function(x))
    agree(*found)


def test_operators_without_a_definition_run_in_pytorch(told: Callable[[], list[str]]) -> None:
    @torch.library.custom_op("autotune_tests::negated", mutates_args=())
    def negated(x: torch.Tensor) -> torch.Tensor:
        return -x.clone()

    @negated.register_fake
    def _(x: Any) -> Any:
        return torch.empty_like(x)

    def function(x: Any) -> Any:
        y = negated(functional.gelu(x @ x))
        return torch.tanh(y @ y), y

    def inverted(x: Any) -> Any:
        return torch.linalg.inv(x @ x.T + torch.eye(4)) @ x

    x = torch.randn(4, 4)
    with torch.inference_mode():
        for case in (function, inverted):
            ours = compiled(case)
            for _ in range(2):
                agree(ours(x), case(x))
    assert told() == []


@pytest.mark.parametrize("is_marked", [False, True])
def test_any_extent_of_a_dynamic_dimension_is_right(is_marked: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        joined = torch.cat([x, y], 1)
        return functional.softmax(joined, -1), joined.reshape(-1, x.shape[0]), x.shape[0] * 2

    graphs = []

    def counted(graph: Any, inputs: Any) -> Any:
        from autotune.dynamo import backend

        graphs.append(graph)
        return backend(graph, inputs, options=OPTIONS)

    ours = torch.compile(function, backend=counted, dynamic=None if is_marked else True)
    with torch.inference_mode():
        for n in (5, 3, 7, 3):
            x, y = torch.randn(n, 6), torch.randn(n, 2)
            if is_marked:
                torch._dynamo.mark_dynamic(x, 0)
                torch._dynamo.mark_dynamic(y, 0)
            agree(ours(x, y), function(x, y))
    assert len(graphs) == 1


@pytest.mark.parametrize("is_dynamic", [True, None])
def test_one_compilation_is_for_all_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_dynamic: bool | None
) -> None:
    """With None PyTorch makes the second size a symbol; a size of one is always its own graph."""
    from autotune.api.compile import compiling

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled_before, found = compiling.compiled_anew, []

    def noted(request: Any) -> Any:
        found.append(dict(request.dims or {}))
        return compiled_before(request)

    monkeypatch.setattr(compiling, "compiled_anew", noted)
    linear = torch.nn.Linear(8, 24).eval()

    def attention(x: Any) -> Any:
        q, k, v = linear(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(1, 2), -1) @ v + x

    ours = compiled(attention, dynamic=is_dynamic)
    with torch.inference_mode():
        for batch, length in ((2, 7), (3, 9), (8, 512), (5, 2), (2, 31), (7, 300)):
            x = torch.randn(batch, length, 8)
            agree(ours(x), attention(x))
    ranges = [sorted(dims.values()) for dims in found]
    assert ranges == [*([] if is_dynamic else [[]]), ["..512", "..8"]]


def test_graph_breaks_and_changes_of_inputs_are_kept() -> None:
    def function(x: Any, cache: Any) -> Any:
        cache[1].copy_(x[0])
        y = torch.relu(x @ x)
        if y.sum() > 0:
            y = y + cache
        return y.add_(1)

    ours = compiled(function)
    with torch.inference_mode():
        x = torch.randn(4, 4)
        first, second = torch.zeros(4, 4), torch.zeros(4, 4)
        agree(ours(x, first), function(x, second))
        agree(first, second)


def test_memory_is_shared_not_copied() -> None:
    from autotune.dynamo.tensors import array_of, tensor_of

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        tensor = torch.ones(4, 6, dtype=dtype)
        array = array_of(tensor)
        assert array.__array_interface__["data"][0] == tensor.data_ptr()
        back = tensor_of(array)
        assert back.data_ptr() == tensor.data_ptr()
        assert back.dtype == dtype


def test_threads_compile_once_and_agree() -> None:
    model, x = mlp(), torch.randn(4, 16)
    ours = compiled(model)
    found: list[Any] = []

    def call() -> None:
        with torch.inference_mode():
            found.extend(ours(x) for _ in range(20))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.inference_mode():
        expected = model(x).numpy()
    assert len(found) == 80
    for y in found:
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_options_that_do_not_exist_are_named() -> None:
    ours = torch.compile(mlp(), backend=_backend(), options={"thread": 1})
    with torch.inference_mode(), pytest.raises(Exception, match="there is no option 'thread'"):
        ours(torch.randn(4, 16))


def _backend() -> Any:
    from autotune.dynamo import backend

    return backend


def test_what_is_exported_is_a_valid_model(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    from autotune.dynamo import exporting

    seen: list[Any] = []
    export = exporting._onnx

    def checked(found: Any) -> Any:
        model = export(found)
        onnx.checker.check_model(model, full_check=True)
        seen.append(model)
        return model

    monkeypatch.setattr(exporting, "_onnx", checked)
    model, x = torch.nn.Linear(16, 19), torch.randn(5, 16)
    with torch.no_grad():
        agree(compiled(model)(x), model(x))
    assert seen
