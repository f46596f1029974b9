"""Decoders of every kind: steps are what the file gives with its outputs fed back, or a refusal
that says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper as oh
import pytest

import autotune
from autotune.errors import NotCompilable
from autotune.graph.operators.table import operators_with
from autotune.graph.state import PROMPT
from autotune.network.runtime.loading import model_of
from tests.small_decoders import TOKENS, WIDTH, FedBack, Small, chunked, hybrid, value

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
    told = {"capacity": CAPACITY, "scores": "all", **told}
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


@pytest.mark.sampled(2)
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


LOW = np.finfo(np.float32).min


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (9, [1, 1, "new", "total"]),  # flags that are added to scores
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
            autotune.compile(small.model(), capacity=CAPACITY, check=check)


def _as_numbers(small: Small, mask: str) -> str:
    """What is added to scores, of flags that tell what is hidden."""
    numbers = small.number(LOW, np.float32), small.number(0, np.float32)
    return small("Where", mask, *numbers)


@dataclass(frozen=True)
class Prepared:
    """A mask of all places for each new one: of flags, or of what is added to scores."""

    form: str

    @property
    def kind(self) -> int:
        return {"added": 1, "half": 10}.get(self.form, 9)

    def small(self, layers: int) -> Small:
        small = Small(layers=layers, causal=False)
        small.inputs.append(value("attention_mask", self.kind, [1, 1, "new", "total"]))
        small.scored.append(partial(self.masked, small))
        return small

    def masked(self, small: Small, scores: str) -> str:
        mask = small("Squeeze", "attention_mask", small.number([0]))
        scores = small("Mul", scores, small.number(0.05, np.float32))
        if self.form == "flags":
            mask = small("Not", mask)
        if self.kind == 9:
            return small("Add", scores, _as_numbers(small, mask))
        return small("Add", scores, small("Cast", mask, to=1))

    def __call__(self, length: int, n: int) -> dict[str, np.ndarray]:
        seen = np.arange(length + n) <= np.arange(length, length + n)[:, None]
        if self.kind == 9:
            return {"attention_mask": (seen if self.form == "flags" else ~seen)[None, None]}
        dtype = np.float16 if self.form == "half" else np.float32
        return {"attention_mask": np.where(seen, 0, np.finfo(dtype).min).astype(dtype)[None, None]}


@pytest.mark.parametrize("form", ["added", "flags", "hidden", "half"])
def test_a_mask_that_the_caller_prepares_is_the_causal_one(form: str) -> None:
    """Where what reads it tells what its numbers mean."""
    mask = Prepared(form)
    follows(mask.small(1).model(), steps=(5, 3, 1, 1, 4, 1), computed=mask)


@pytest.mark.slow
def test_a_prepared_mask_over_many_layers_and_a_long_text() -> None:
    mask = Prepared("added")
    steps = (40, 13, 5, *(1,) * 200)
    follows(mask.small(12).model(), steps=steps, computed=mask, capacity=288, atol=1e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [3, 1])
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

    follows(small.model(), computed=positions, steps=(5, 1, 4))


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

    follows(small.model(), given=scalars, steps=(3, 1))


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
        autotune.compile(made, capacity=CAPACITY, check=False)


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
        autotune.compile(made, capacity=CAPACITY, check=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layers", [12, 1])
def test_caches_and_states_of_a_fixed_shape(layers: int) -> None:
    report = follows(hybrid(layers), steps=(5, 1, 1)).report
    assert report is not None
    names = {output.name for output in report.outputs}
    assert {f"present_conv.{n}" for n in range(layers)} < names


@pytest.mark.slow
def test_hundreds_of_tokens_of_a_deep_hybrid() -> None:
    follows(hybrid(12), steps=(7, *(1,) * 256), capacity=288)


@pytest.mark.parametrize(("layers", "steps"), [(12, (5, 1, 1, 2)), (1, (1, 1, 1))])
def test_states_of_a_fixed_shape_alone(layers: int, steps: tuple[int, ...]) -> None:
    """The second file takes one token in a step."""
    model = hybrid(layers, caches=False)
    if max(steps) == 1:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    compiled = follows(
        model,
        steps=steps,
        computed=lambda length, n: {"attention_mask": np.ones((1, length + n), np.int64)},
    )
    assert not compiled.artifact.state.buffers  # type: ignore[union-attr]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("size", "steps", "capacity"),
    [
        (5, (17, 1, 20, 5, 2), 64),
        (24, (9, 24, 3, 1), 64),
        (256, (600, 1, 300), 1100),
        (9, (9, 1, 10, 8, 18, 2), 80),
    ],
)
def test_a_prefill_goes_in_chunks_of_its_places(
    size: int, steps: tuple[int, ...], capacity: int
) -> None:
    """Whatever of the last chunk is filled, in one program; where the capacity has few chunks, a
    prefill has one."""
    compiled = follows(chunked(size), steps=steps, capacity=capacity)
    variants: Any = compiled.artifact.variants
    assert PROMPT in variants[0].lengths


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [10, 16])
def test_caches_of_half_precision_are_checked_as_such(kind: int) -> None:
    """The file rounds new rows."""
    model = Small(kind=kind).model()
    compiled = autotune.compile(model, capacity=CAPACITY)
    assert compiled.report is not None
    if kind == 10:
        follows(model, atol=2e-2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_steps_are_checked_in_the_precision_of_their_products(precision: str) -> None:
    follows(Small().model(), precision=precision, atol=5e-2, steps=(3, 1))


# --- what follows the length --------------------------------------------------------------------


def scored(of: Callable[[Small, str, str, str], str], **told: Any) -> Small:
    """A decoder whose scores are changed by (scores, past, total), both without dimensions."""
    small = Small(**told)
    past = small.past()
    total = small("Squeeze", small("Add", past, small.new()))
    past = small("Squeeze", past)
    small.scored.append(lambda scores: of(small, scores, past, total))
    return small


def chunks_of_four(small: Small, scores: str, past: str, total: str) -> str:
    """Each place sees those of its own four."""
    one, four = small.number(1), small.number(4)
    every = small("Div", small("Range", small.number(0), total, one), four)
    own = small("Div", small("Range", past, total, one), four)
    same = small("Equal", every, small("Unsqueeze", own, one))
    lowest = small.number(np.finfo(np.float32).min, np.float32)
    return small("Where", same, scores, lowest)


def factor_from_seven_on(small: Small, scores: str, past: str, total: str) -> str:
    is_long = small("Greater", total, small.number(7))
    factors = [small.number(x, np.float32) for x in (2.0, 0.2)]
    return small("Mul", scores, small("Where", is_long, *factors))


def factor_at_seven_alone(small: Small, scores: str, past: str, total: str) -> str:
    is_seven = small("Equal", total, small.number(7))
    factors = [small.number(x, np.float32) for x in (2.0, 0.2)]
    return small("Mul", scores, small("Where", is_seven, *factors))


def factor_of_every_fourth(small: Small, scores: str, past: str, total: str) -> str:
    rest = small("Mod", past, small.number(4))
    return small("Mul", scores, small("Add", small("Cast", rest, to=1), small.number(1.0, "f4")))


def factor_by_logarithm(small: Small, scores: str, past: str, total: str) -> str:
    return small(
        "Mul",
        scores,
        small("Log", small("Add", small("Cast", total, to=1), small.number(1.0, "f4"))),
    )


def row_of_a_table(small: Small, scores: str, past: str, total: str) -> str:
    """One number of a table, by a half of the length."""
    half = small("Div", total, small.number(2))
    return small("Mul", scores, small("Gather", small.weight(CAPACITY), half))


def clamped(small: Small, scores: str, past: str, total: str) -> str:
    return small("Mul", scores, small("Cast", small("Min", total, small.number(5)), to=1))


def distances(small: Small, scores: str, past: str, total: str) -> str:
    """As ALiBi has it: minus the distance of each place."""
    one = small.number(1)
    every = small("Range", small.number(0), total, one)
    own = small("Unsqueeze", small("Range", past, total, one), one)
    away = small("Cast", small("Sub", every, own), to=1)
    return small("Add", scores, small("Mul", away, small.number(0.3, np.float32)))


def number_of_places(small: Small, scores: str, past: str, total: str) -> str:
    """The sum of ones: of as many as there are."""
    shape = small("Unsqueeze", total, small.number([0]))
    ones = small("Expand", small.number(1.0, np.float32), shape)
    return small("Div", scores, small("ReduceSum", ones, small.number([0]), keepdims=0))


def rows_of_a_mask(small: Small, scores: str, past: str, total: str) -> str:
    """A table of all places beside all, of which both dimensions are cut at once."""
    table = small.number(small.rng.standard_normal((CAPACITY, CAPACITY)), np.float32)
    zero = small.number([0])
    ends = [small("Unsqueeze", name, zero) for name in (past, total)]
    begins = small("Concat", ends[0], zero, axis=0)
    behind = small("Concat", ends[1], ends[1], axis=0)
    cut = small("Slice", table, begins, behind, small.number([0, 1]))
    return small("Add", scores, cut)


FORMS = (
    chunks_of_four,
    factor_from_seven_on,
    factor_at_seven_alone,
    factor_of_every_fourth,
    factor_by_logarithm,
    row_of_a_table,
    clamped,
    distances,
    number_of_places,
    rows_of_a_mask,
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_the_length_decides_is_computed_at_every_length(form: Any) -> None:
    follows(scored(form).model(), steps=(1,) * 12, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [chunks_of_four, distances, rows_of_a_mask], ids=lambda form: form.__name__
)
def test_what_the_length_decides_in_steps_of_several_places(form: Any) -> None:
    """Of those that are not for one place in a step."""
    follows(scored(form).model(), steps=(4, 1, 1, 4))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", [3, 2])
def test_rows_of_a_table_of_positions_are_taken_by_a_slice(rank: int) -> None:
    small = Small()
    past = small.past()
    total = small("Add", past, small.new())
    rows = small("Slice", small.weight(64, WIDTH), past, total, small.number([0]))
    if rank == 3:
        rows = small("Unsqueeze", rows, small.number([0]))
    small.x = small("Add", small.x, rows)
    follows(small.model(), steps=(5, 1, 1))


def test_a_branch_that_the_length_decides_is_refused() -> None:
    def branched(small: Small, scores: str, past: str, total: str) -> str:
        bodies = {}
        for which, factor in (("then_branch", 2.0), ("else_branch", 0.2)):
            number = oh.make_tensor(which, 1, [], [factor])
            node = oh.make_node("Constant", [], [f"{which}.out"], value=number)
            bodies[which] = oh.make_graph([node], which, [], [value(f"{which}.out", 1, [])])
        found = small("If", small("Greater", total, small.number(small_limit)), **bodies)
        return small("Mul", scores, found)

    for small_limit in (7, 2 * CAPACITY):
        model = scored(branched).model()
        if small_limit > CAPACITY:  # decided: at no length is it another one
            follows(model)
            continue
        with pytest.raises(NotCompilable, match=r"'If'.*depends on the length of the state"):
            autotune.compile(model, capacity=CAPACITY, check=False)


def test_attention_of_onnxruntime_with_a_past() -> None:
    """MultiHeadAttention with a causal mask of its own."""
    small = Small(causal=False)
    q, k, v = (small("MatMul", small.x, small.weight(WIDTH, WIDTH)) for _ in range(3))
    pasts = [f"past_key_values.0.{kind}" for kind in ("key", "value")]
    outputs = ["logits", "present.0.key", "present.0.value"]
    small.nodes.append(
        oh.make_node(
            "MultiHeadAttention",
            [q, k, v, "", "", "", *pasts],
            outputs,
            domain="com.microsoft",
            num_heads=2,
            unidirectional=1,
        )
    )
    model = small.model(layers=0, cache=[1, 2, "{}", WIDTH // 2])
    follows(model, steps=(5, 1, 4))


@pytest.mark.parametrize(
    ("layout", "mode"), [("heads first", "linear"), ("places first", "circular")]
)
def test_static_caches_that_tensor_scatter_writes(layout: str, mode: str) -> None:
    """At the place of the first new row, beside attention that counts the places."""
    small = Small(opset=24, causal=False)
    small.inputs += [value("at", 7, [1]), value("count", 7, [1])]
    heads, size = 2, WIDTH // 2
    is_first = layout == "heads first"
    made = {}
    for kind in ("query", "key", "value"):
        flat = small("MatMul", small.x, small.weight(WIDTH, WIDTH))
        apart = small("Reshape", flat, small.number([0, 0, heads, size]))
        is_turned = is_first or kind == "query"
        made[kind] = small("Transpose", apart, perm=[0, 2, 1, 3]) if is_turned else apart
    for kind in ("key", "value"):
        past, present = f"past_key_values.0.{kind}", f"present.0.{kind}"
        axis = {"axis": 2} if is_first else {"axis": -3}
        whole = small("TensorScatter", past, made[kind], "at", name=present, mode=mode, **axis)
        made[kind] = whole if is_first else small("Transpose", whole, perm=[0, 2, 1, 3])
    operands = [made[kind] for kind in ("query", "key", "value")]
    found = small("Attention", *operands, "", "", "", "count", is_causal=1)
    joined = small("Transpose", found, perm=[0, 2, 1, 3])
    small("Reshape", joined, small.number([0, 0, WIDTH]), name="logits")
    cache = [1, heads, CAPACITY, size] if is_first else [1, CAPACITY, heads, size]
    model = small.model(layers=0, cache=cache)

    def places(length: int, n: int) -> dict[str, np.ndarray]:
        return {"at": np.array([length]), "count": np.array([length + n])}

    follows(model, steps=(5, 1, 4), computed=places)
    moved = next(node for node in model.graph.node if node.op_type == "TensorScatter")
    model.graph.node.insert(0, oh.make_node("Neg", ["at"], ["other"]))
    moved.input[2] = "other"
    with pytest.raises(NotCompilable, match="writes other places of a cache than the new ones"):
        autotune.compile(model, capacity=CAPACITY, check=False)


def test_a_batch_may_be_the_second_dimension() -> None:
    small = Small()
    small.inputs.append(value("position_ids", 7, [3, "batch", "new"]))
    found = small("Gather", small.weight(2 * CAPACITY, WIDTH), "position_ids")
    small.x = small("Add", small.x, small("ReduceSum", found, small.number([0]), keepdims=0))
    model = small.model()
    for port in model.graph.input:
        if not port.name.startswith("position"):
            port.type.tensor_type.shape.dim[0].dim_param = "batch"
    autotune.compile(model, capacity=CAPACITY)


def test_a_cache_may_be_joined_twice() -> None:
    """As attention and the output do, each for itself."""
    model = Small().model()
    nodes = model.graph.node
    joined = next(node for node in nodes if node.output[0] == "present.0.key")
    reader = next(node for node in nodes if "present.0.key" in node.input)
    reader.input[:] = ["again" if n == "present.0.key" else n for n in reader.input]
    again = oh.make_node("Concat", [*joined.input], ["again"], axis=1)
    nodes.insert(list(nodes).index(joined), again)
    follows(model)


def test_scores_of_the_last_places_are_a_constant() -> None:
    """`num_logits_to_keep` decides a shape: it is bound, or refused with the node."""
    small = Small()
    small.inputs.append(value("num_logits_to_keep", 7, []))
    model = small.model()
    last = next(node for node in model.graph.node if node.output[0] == "logits")
    source = last.input[0]
    model.graph.node.remove(last)
    for name, number in (("zero", 0), ("one", 1), ("end", 2**62)):
        model.graph.initializer.append(oh.make_tensor(name, 7, [1], [number]))
    model.graph.node.extend(
        [
            oh.make_node("Neg", ["num_logits_to_keep"], ["less"]),
            oh.make_node("Unsqueeze", ["less", "zero"], ["begin"]),
            oh.make_node("Slice", [source, "begin", "end", "one"], ["logits"], "kept"),
        ]
    )
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "kept"
    told = {"capacity": CAPACITY}
    compiled = autotune.compile(model, constants={"num_logits_to_keep": 1}, **told)
    assert model_of(compiled.artifact).session().step(np.ones((1, 5), int)).shape == (1, 1, WIDTH)
    with pytest.raises(NotCompilable, match=r"'Slice' \(node 'kept'"):
        autotune.compile(model, check=False, **told)


def test_what_has_no_program_beside_a_state_is_named() -> None:
    """Nothing falls back there: the hint says where it does."""
    small = Small()
    small.nodes.append(oh.make_node("MoE", [small.x], ["mixed"], "experts", domain="com.microsoft"))
    small.x = "mixed"
    with pytest.raises(NotCompilable, match=r"'com.microsoft.MoE' \(node 'experts'.*") as error:
        autotune.compile(small.model(), capacity=CAPACITY)
    assert "without `capacity`" in error.value.hint


def test_a_cache_of_the_last_places_alone_is_refused() -> None:
    """Its extent stops growing at four places."""
    model = Small(causal=False).model()
    nodes = model.graph.node
    for name, number in (("begin", -4), ("end", 2**40), ("axis", 1)):
        model.graph.initializer.append(oh.make_tensor(name, 7, [1], [number]))
    for kind in ("key", "value"):
        joined = next(node for node in nodes if node.output[0] == f"present.0.{kind}")
        joined.output[0] = f"all.{kind}"
        cut = oh.make_node("Slice", [f"all.{kind}", "begin", "end", "axis"], [f"present.0.{kind}"])
        nodes.insert(list(nodes).index(joined) + 1, cut)
    with pytest.raises(NotCompilable, match=r"grow by the same number|new places behind"):
        autotune.compile(model, capacity=CAPACITY, check=False)
