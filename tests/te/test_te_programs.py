"""Random programs: NumPy, every form that a task is kept in, and every rewrite agree about them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from autotune import te
from autotune.te.codec import dag_from_json, dag_to_json, expr_from_json, expr_to_json
from autotune.te.collapse import collapse
from autotune.te.dag import (
    Compute,
    ComputeDAG,
    anonymous,
    compute,
    placeholder,
    print_dag,
    print_expr,
    shape_text,
)
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Const, Tensor
from autotune.te.form import form_of
from autotune.te.order import follow_sources
from autotune.te.tabulate import tabulate
from autotune.te.validate import require_valid
from tests.te.random_programs import FUNCTIONS, PAIRS, Program, random_program

SEEDS = range(0, 240, 20)


def programs(seed: int) -> Iterator[Program]:
    yield from (random_program(n) for n in range(seed, seed + 20))


def same(program: Program, dag: ComputeDAG) -> None:
    """`dag` computes it, whatever shapes its tensors have got."""
    shapes = {p.name: p.tensor.shape for p in dag.placeholders}
    found = evaluate(dag, {n: a.reshape(shapes[n]) for n, a in program.inputs.items()})
    assert found.keys() == program.expected.keys()
    for name, want in program.expected.items():
        given = found[name].reshape(want.shape)
        np.testing.assert_allclose(given, want, rtol=3e-5, atol=3e-5, err_msg=print_dag(dag))


@pytest.mark.parametrize("seed", SEEDS)
def test_numpy_and_every_rewrite_agree(seed: int) -> None:
    for program in programs(seed):
        dag = program.dag
        same(program, dag)
        for dense in ((), tuple(op.name for op in dag.ops)):
            small = collapse(dag, dense)
            same(program, small)
            assert collapse(small, dense) == small
            assert all(1 not in op.tensor.shape for op in small.ops if len(op.tensor.shape) > 1)
        same(program, follow_sources(dag))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_is_the_same_in_a_file_and_under_other_names(seed: int) -> None:
    for program in programs(seed):
        dag = program.dag
        require_valid(dag)
        text = json.dumps(dag_to_json(dag), allow_nan=False)
        again = dag_from_json(json.loads(text))
        assert again == dag
        assert print_dag(again) == print_dag(dag)
        unnamed = anonymous(dag)
        assert unnamed.key == dag.key == again.key
        values = zip(unnamed.placeholders, dag.placeholders, strict=True)
        found = evaluate(unnamed, {u.name: program.inputs[d.name] for u, d in values})
        wanted = evaluate(dag, program.inputs)
        for ours, theirs in zip(unnamed.outputs, dag.outputs, strict=True):
            np.testing.assert_array_equal(found[ours], wanted[theirs])


def test_keys_of_other_tasks_differ() -> None:
    every = [random_program(n).dag for n in range(200)]
    texts = {print_dag(anonymous(dag)) for dag in every}
    assert len({dag.key for dag in every}) == len(texts)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1.5, 0.1, -0.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_any_float_is_kept_in_json(value: float, dtype: str) -> None:
    text = json.dumps(expr_to_json(Const(value, dtype)), allow_nan=False)
    found = expr_from_json(json.loads(text), {})
    assert isinstance(found, Const)
    assert isinstance(found.value, float)
    assert np.float64(found.value).tobytes() == np.float64(value).tobytes()
    assert found.dtype == dtype


def _damaged(data: Any, rng: Random) -> Any:
    """JSON with one value, or one word wherever it is, of another kind."""
    paths: list[tuple[Any, Any]] = []

    def visit(part: Any) -> None:
        keys = part if isinstance(part, dict) else range(len(part) if isinstance(part, list) else 0)
        for key in keys:
            paths.append((part, key))
            visit(part[key])

    visit(data)
    part, key = rng.choice(paths)
    old = part[key]
    new: Any = rng.choice([None, -1, "nothing", [], 1.5, {}, 1 << 70, True, ""])
    alike = [(p, k) for p, k in paths if isinstance(old, str) and p[k] == old]
    for place, at in alike if rng.random() < 0.5 else [(part, key)]:
        place[at] = new
    return data


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_no_task_is_refused_and_what_is_taken_can_be_written(seed: int) -> None:
    """A damaged task is an error at once, or a task like others: printed, keyed, written, read."""
    rng, n_refused = Random(seed), 0
    for _ in range(80):
        data = _damaged(dag_to_json(random_program(seed + rng.randrange(20)).dag), rng)
        try:
            dag = dag_from_json(data)
            require_valid(dag)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            n_refused += 1
            continue
        for op in dag.ops:
            assert all(isinstance(n, int) for n in op.tensor.shape)
            assert min(op.tensor.shape, default=0) >= 0
            axes = (*op.axes, *op.reduce_axes) if isinstance(op, Compute) else ()
            names: list[Any] = [op.name, *(a.name for a in axes)]
            assert all(isinstance(name, str) for name in names)
            assert all(names)
            assert len({*names[1:]}) == len(axes)
        assert dag_from_json(dag_to_json(dag)) == dag or "nan" in repr(dag)
        assert len(dag.key) == 16
    assert n_refused > 20


def test_a_dag_is_in_order_and_has_a_name_once() -> None:
    n_tried = 0
    for dag in (random_program(n).dag for n in range(60)):
        a = dag.computes[0]
        with pytest.raises(ValueError, match="unique"):
            ComputeDAG((*dag.ops, a), dag.outputs)
        for op in dag.computes[1:]:
            if any(x.tensor.name == a.name for x in op.reads):
                others = tuple(x for x in dag.ops if x is not op)
                at = others.index(a)
                with pytest.raises(ValueError, match="before it is defined"):
                    ComputeDAG((*others[:at], op, *others[at:]), dag.outputs)
                n_tried += 1
    assert n_tried > 20


def test_work_and_traffic_are_counted() -> None:
    for program in (random_program(n) for n in range(100)):
        dag = program.dag
        size = sum(a.nbytes for a in program.inputs.values())
        outputs = sum(4 * a.size for a in program.expected.values())
        assert dag.n_bytes == size + outputs
        terms = (math.prod(a.extent for a in (*c.axes, *c.reduce_axes)) for c in dag.computes)
        reduced = zip(terms, dag.computes, strict=True)
        assert dag.flops >= sum(n for n, c in reduced if c.reduce_axes)


@pytest.mark.parametrize("name", [*FUNCTIONS, *PAIRS])
def test_tables_of_functions_round_as_definitions_do(name: str) -> None:
    """What a table of an element-wise expression has is what the expression computes."""
    ours, numpy = {**FUNCTIONS, **PAIRS}[name]
    n_inputs = 1 if name in FUNCTIONS and (name not in PAIRS or ours is FUNCTIONS[name][0]) else 2
    inputs = [te.placeholder(64, f"x{n}") for n in range(n_inputs)]
    dag = te.dag_of(te.compute(64, lambda i: ours(*(x[i] for x in inputs)), "y"))
    rng = np.random.default_rng(3)
    values = {x.name: rng.standard_normal(64).astype(np.float32) for x in inputs}
    (op,) = dag.computes
    found = tabulate(op.body, values)
    assert found.dtype == np.float32
    wide = [a.astype(np.float64) for a in values.values()]
    np.testing.assert_allclose(found, numpy(*wide), rtol=1e-5, atol=1e-6)


def test_forms_are_tasks_without_their_numbers() -> None:
    """The nearest of the same form is the task itself, and other extents are farther."""
    for n in range(60):
        dag = random_program(n).dag
        form = form_of(dag)
        assert form.distance(form.extents) == 0
        twice = [2 * x + 1 if x > 0 else x for x in form.extents]
        changed = sum(x > 0 for x in form.extents)
        assert form.distance(twice) == pytest.approx(changed)
        assert form_of(anonymous(dag)).extents == form.extents


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_next_to_one_another_have_texts_of_their_own(dtype: str) -> None:
    rng, kind = np.random.default_rng(0), np.dtype(dtype).type
    for value in rng.standard_normal(200).astype(dtype):
        near = np.nextafter(value, kind(9))
        assert print_expr(Const(float(value), dtype)) != print_expr(Const(float(near), dtype))
        assert kind(print_expr(Const(float(value), dtype))) == value


def test_shapes_of_inputs_of_large_constants_and_of_outputs_are_told() -> None:
    for dag in (random_program(n).dag for n in range(100)):
        text = shape_text(dag)
        inputs, _, outputs = text.partition(" -> ")
        head, _, constants = inputs.partition(" (")

        def told(shapes: list[tuple[int, ...]]) -> str:
            return ", ".join("x".join(map(str, shape)) for shape in shapes)

        places = dag.placeholders
        large = [p.tensor.shape for p in places if p.constant and len(p.tensor.shape) > 1]
        assert head == told([p.tensor.shape for p in places if not p.constant])
        assert constants.removesuffix(")") == told(large)
        assert outputs == told([dag[name].tensor.shape for name in dag.outputs])


def test_a_tensor_may_be_empty_and_has_an_index_for_each_dimension() -> None:
    x, axes = placeholder("x", (0, 3)), (Axis("i", 0), Axis("j", 3))
    dag = ComputeDAG((x, compute("y", axes, x.tensor[axes])), ("y",))
    require_valid(dag)
    assert dag_from_json(dag_to_json(dag)) == dag
    for rank in range(4):
        if rank != 2:
            with pytest.raises(ValueError, match="x"):
                Tensor("x", (2, 3))[(Axis("i", 1),) * rank]
