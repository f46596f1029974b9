"""Decoders of every kind: steps are what the file gives with its outputs fed back, or a refusal
that says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper as oh
import pytest

import autotune
from autotune.errors import NotCompilable
from autotune.graph.operators.table import operators_with
from autotune.graph.reader.growing import follows_places
from autotune.network.runtime.loading import model_of
from tests.small_decoders import TOKENS, WIDTH, FedBack, Small, value

CAPACITY = 16
Inputs = Callable[[int, int], dict[str, np.ndarray]]
"""What a caller gives beside the tokens: length, new places -> inputs by name."""


def nothing(length: int, n: int) -> dict[str, np.ndarray]:
    return {}


def follows(
    model: onnx.ModelProto,
    *,
    steps: Sequence[int] = (1,) * 6,
    given: Inputs = nothing,
    computed: Inputs = nothing,
    atol: float = 1e-4,
    **told: Any,
) -> autotune.Compiled:
    """Compiles (which checks), and requires the logits of the file in steps of these sizes.

    `given`: inputs of both; `computed`: those that the file alone takes."""
    told = {"capacity": CAPACITY, "chunks": (1,), **told}
    compiled = autotune.compile(model, **told)
    session, expected = model_of(compiled.artifact).session(), FedBack(model)
    rng, length = np.random.default_rng(3), 0
    for n in steps:
        tokens = {"input_ids": rng.integers(0, TOKENS, (1, n))}
        both = {**tokens, **given(length, n)}
        found = session.run(both)["logits"]
        wanted = expected(**both, **computed(length, n))["logits"]
        np.testing.assert_allclose(found, wanted, atol=atol, rtol=1e-3)
        length += n
    return compiled


# --- operators on scores ------------------------------------------------------------------------


def test_every_elementwise_operator_follows_a_state() -> None:
    assert [op for op in operators_with(lambda o: o.is_elementwise) if not follows_places(op)] == []


_BETWEEN = ("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")


def test_elementwise_operators_of_scores_give_what_the_file_gives() -> None:
    """All that ONNX has, in one sum: of numbers that each is defined for."""
    small = Small(opset=22)

    def every(scores: str) -> str:
        half = small.number(0.5, np.float32)
        x = small("Add", small("Mul", small("Sigmoid", scores), half), half)  # between 0.5 and 1
        above = small("Add", x, half)
        flag = small("Greater", x, half)
        whole = small("Cast", small("Mul", x, small.number(9.0, np.float32)), to=12)
        made = [scores]
        for op in sorted(operators_with(lambda o: o.is_elementwise)):
            if not onnx.defs.has(op):
                continue
            schema = onnx.defs.get_schema(op, 22)
            if op in _BETWEEN:
                more = {"direction": "LEFT"} if op == "BitShift" else {}
                made.append(small("Cast", small(op, whole, whole, **more), to=1))
            elif op == "Where":
                made.append(small(op, flag, x, above))
            elif op == "Cast":
                made.append(small(op, x, to=1))
            elif op in ("And", "Or", "Xor", "Not"):
                made.append(small("Cast", small(op, *[flag] * schema.min_input), to=1))
            elif op == "Mod":
                made.append(small(op, x, above, fmod=1))
            elif op in ("Clip", "Identity", "Max", "Min"):
                made.append(small(op, x))
            else:
                operands = [above if op == "Acosh" else x, above][: schema.min_input]
                found = small(op, *operands)
                is_flag = op in ("Equal", "IsNaN", "IsInf") or op.startswith(("Less", "Greater"))
                made.append(small("Cast", found, to=1) if is_flag else found)
        return small("Sum", *made)

    small.scored.append(every)
    follows(small.model(), steps=(1, 1, 1))


@pytest.mark.parametrize(
    "op", [f"Reduce{f}" for f in ("Sum", "Max", "Min", "L2", "SumSquare", "LogSumExp", "L1")]
)
def test_reductions_over_all_places_leave_out_unused_ones(op: str) -> None:
    small = Small(opset=18)

    def less(scores: str) -> str:
        return small("Sub", scores, small(op, scores, small.number([-1]), keepdims=1))

    def more(scores: str) -> str:
        return small("Add", scores, small("Tanh", less(scores)))

    small.scored.append(more)
    follows(small.model(), steps=(1, 1, 1))


# --- inputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (1, [1, 1, "new", "total"]),  # numbers that are added to scores
        (9, [1, 1, "new", "total"]),  # flags, of either meaning
        (7, [1, "new", "total"]),
        (1, [1, "total"]),
    ],
)
def test_a_mask_of_no_known_meaning_is_never_made_up(kind: int, shape: list[Any]) -> None:
    small = Small()
    small.inputs.append(value("attention_mask", kind, shape))

    def masked(scores: str) -> str:
        mask = small("Cast", "attention_mask", to=1)
        if len(shape) == 4:
            mask = small("Squeeze", mask, small.number([0]))
        return small("Add", scores, mask)

    small.scored.append(masked)
    for check in (True, False):
        with pytest.raises(NotCompilable, match=r"the numbers of 'attention_mask'.*a mask"):
            autotune.compile(small.model(), capacity=CAPACITY, chunks=(1,), check=check)


@pytest.mark.parametrize("rows", [1, 3])
def test_position_ids_have_any_number_of_rows(rows: int) -> None:
    """Those of time, height and width: of text all are equal."""
    small = Small()
    small.inputs.append(value("position_ids", 7, [rows, 1, "new"]))
    places = small.weight(2 * CAPACITY, WIDTH)
    found = small("Gather", places, "position_ids")
    summed = small("ReduceSum", found, small.number([0]), keepdims=0)
    small.x = small("Add", small.x, summed)

    def positions(length: int, n: int) -> dict[str, np.ndarray]:
        of_all = np.broadcast_to(np.arange(length, length + n), (rows, 1, n))
        return {"position_ids": np.ascontiguousarray(of_all)}

    follows(small.model(), computed=positions, chunks=(4, 1), steps=(5, 1, 4))


def test_scalars_are_inputs_of_a_step() -> None:
    """Of floats and of integers, for one session and for several in a step."""
    small = Small()
    small.inputs += [value("temperature", 1, []), value("shift", 7, []), value("gain", 1, [1])]

    def scaled(scores: str) -> str:
        shifted = small("Add", scores, small("Cast", "shift", to=1))
        return small("Mul", small("Mul", shifted, "temperature"), "gain")

    small.scored.append(scaled)

    def scalars(length: int, n: int) -> dict[str, np.ndarray]:
        return {
            "temperature": np.array(1 + length, np.float32),
            "shift": np.array(3),
            "gain": np.ones(1, np.float32),
        }

    follows(small.model(), given=scalars, chunks=(2, 1), steps=(3, 1))


# --- states -------------------------------------------------------------------------------------


def test_new_rows_alone_are_no_state_with_new_places() -> None:
    small = Small()
    made = small.model()
    for kind in ("key", "value"):
        concat = next(n for n in made.graph.node if n.output[0] == f"present.0.{kind}")
        concat.output[0] = f"all.{kind}"
        for node in made.graph.node:
            node.input[:] = [f"all.{kind}" if n == f"present.0.{kind}" else n for n in node.input]
        rows = oh.make_node("Identity", [concat.input[1]], [f"present.0.{kind}"])
        made.graph.node.append(rows)
    for output in made.graph.output[1:]:
        output.type.tensor_type.shape.dim[1].dim_param = "new"
    with pytest.raises(NotCompilable, match=r"is not '.*' with new places behind it"):
        autotune.compile(made, capacity=CAPACITY, chunks=(1,), check=False)


def test_a_state_that_is_changed_as_a_whole_is_refused() -> None:
    """Rows that are there already would be others in the next step."""
    small = Small()
    made = small.model()
    concat = next(n for n in made.graph.node if n.output[0] == "present.0.key")
    concat.output[0] = "all"
    made.graph.node.append(oh.make_node("Tanh", ["all"], ["present.0.key"]))
    ordered = sorted(made.graph.node, key=lambda n: n.output[0] == "present.0.key")
    del made.graph.node[:]
    made.graph.node.extend(ordered)
    for node in made.graph.node:
        node.input[:] = ["all" if n == "present.0.key" else n for n in node.input]
    with pytest.raises(NotCompilable, match=r"'present\.0\.key' is not"):
        autotune.compile(made, capacity=CAPACITY, chunks=(1,), check=False)


def hybrid(layers: int = 1) -> onnx.ModelProto:
    """Short convolutions, whose last columns are replaced, and caches beside them."""
    small = Small(layers=layers)
    names = sorted(f"past_conv.{n}" for n in range(layers))  # "10" comes before "2"
    small.inputs += [value(name, 1, [1, WIDTH, 2]) for name in names]
    small.outputs += [
        value(name.replace("past", "present"), 1, [1, WIDTH, 2]) for name in names[::-1]
    ]
    for n in range(layers):
        turned = small("Transpose", small.x, perm=[0, 2, 1])
        both = small("Concat", f"past_conv.{n}", turned, axis=2)
        last = [small.number([-2]), small.number([2**31 - 1]), small.number([2])]
        small("Slice", both, *last, name=f"present_conv.{n}")
        kernel = small.weight(WIDTH, 1, 3)
        small.x = small("Transpose", small("Conv", both, kernel, group=WIDTH), perm=[0, 2, 1])
    return small.model()


@pytest.mark.parametrize("layers", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_caches_and_states_of_a_fixed_shape(layers: int) -> None:
    report = follows(hybrid(layers), chunks=(4, 1), steps=(5, 1, 1)).report
    assert report is not None
    names = {output.name for output in report.outputs}
    assert {f"present_conv.{n}" for n in range(layers)} < names


@pytest.mark.parametrize("kind", [10, 16])
def test_caches_of_half_precision_are_checked_as_such(kind: int) -> None:
    """The file rounds new rows."""
    model = Small(kind=kind).model()
    compiled = autotune.compile(model, capacity=CAPACITY, chunks=(4, 1))
    assert compiled.report is not None
    if kind == 10:
        follows(model, atol=2e-2)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_steps_are_checked_in_the_precision_of_their_products(precision: str) -> None:
    follows(Small().model(), precision=precision, atol=5e-2, chunks=(2, 1), steps=(3, 1))
