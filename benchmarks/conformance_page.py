"""The page `docs/conformance.md`: what the official cases, fuzzed and reported models become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.outcomes import Kind
from benchmarks.tables import markdown

Row = dict[str, str]

REASONS = (
    (r"operator '(\S+)' is not supported$", "an operator without a definition"),
    (r"(?:an|\d+) operators? (?:is|are) not supported: '(\w+)'", "several operators without one"),
    (r"operator '(\S+)' is not supported: type ", "an operator of elements of that type"),
    (r"operator '(\S+)' is not supported: ", "a form of an operator"),
    (r".* is of type '(sequence|optional)'", "an input or output that is no tensor"),
    (r"the shape of |.*depends on the data", "a shape that the data decide"),
    (r"dimensions of the inputs have no value", "a dimension without a value"),
    (
        r"the shapes of the model do not fit.* '(\w+)'",
        "types or shapes that opset 22 does not know",
    ),
    (r"operator '(\S+)' is not well formed", "operands or attributes that do not fit together"),
    (r"operator '(\S+)' asks for too much", "more than a limit"),
    (r"the model is not valid", "what the checker of ONNX does not allow"),
    (r"input .* has elements of type '(\w+)'", "an input of elements of that type"),
    (r".*holds no ONNX graph", "a model of other operator sets (training, classical learning)"),
)
"""A pattern of the message, with what is refused as its group, and the reason that it is."""
OTHER = "another reason"


def tables(official: Sequence[Row]) -> Iterator[str]:
    """The parts of the page."""
    yield "## Official cases"
    yield _OFFICIAL.strip()
    yield markdown(["set", "tried", "right", *_KINDS[1:]], list(_by_set(official)))
    yield _WITH_FALLBACK.strip()
    yield markdown(["set", "tried", "natively", "with fallback", "ONNX Runtime"], _whole(official))
    as_given = sum(row["form"] == "as given" and row["outcome"] == "right" for row in official)
    with_constants = sum(row["form"] == "constants" for row in _of(official, "right"))
    yield f"Of the right ones, {as_given} are as given and {with_constants} have constants."
    yield "### Refused"
    head = ["reason", "cases", "right with fallback", "what"]
    yield markdown(head, list(_by_reason(_of(official, "refused"))))


def soak_tables(soaked: Sequence[Row]) -> Iterator[str]:
    """What was tried at random, one row each."""
    yield "## Reported, random and damaged"
    yield _SOAKED.strip()
    if soaked:
        yield markdown(list(soaked[0]), [list(row.values()) for row in soaked])


def _of(rows: Iterable[Row], outcome: str) -> list[Row]:
    return [row for row in rows if row["outcome"] == outcome]


_KINDS = [str(kind) for kind in Kind]


def _by_set(rows: Sequence[Row]) -> Iterator[list[str]]:
    sets = list(dict.fromkeys(row["set"] for row in rows))
    for name in sets:
        yield _counts(name, [row for row in rows if row["set"] == name])
    yield _counts("all", rows)
    yield _counts("all of plain types", _plain(rows))


def _plain(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["types"] == "plain"]


def _whole(rows: Sequence[Row]) -> list[list[str]]:
    """How many are right natively, as given or with the fallback, and in ONNX Runtime."""
    return [
        [name, *(str(n) for n in (len(some), *_right(some)))]
        for name, some in (("all", rows), ("all of plain types", _plain(rows)))
    ]


def _right(rows: Sequence[Row]) -> tuple[int, int, str]:
    natively = sum(row["outcome"] == "right" for row in rows)
    alone = [row for row in rows if row["onnxruntime"] == "right"]
    kept = sum(row["fallback"] == "right" for row in alone)
    whole = natively + sum(row["fallback"] == "right" for row in rows)
    return natively, whole, f"{kept} of {len(alone)}"


def _counts(name: str, rows: Sequence[Row]) -> list[str]:
    found = Counter(row["outcome"] for row in rows)
    return [name, str(len(rows)), *(str(found[kind]) for kind in _KINDS)]


def _by_reason(rows: Sequence[Row]) -> Iterator[list[str]]:
    groups: dict[str, Counter[str]] = {}
    whole: Counter[str] = Counter()
    for row in rows:
        reason, what = reason_of(row["reason"])
        groups.setdefault(reason, Counter())[what] += 1
        whole[reason] += row["fallback"] == "right"
    for reason, found in sorted(groups.items(), key=lambda item: -item[1].total()):
        parts = (f"{what} {n}" for what, n in found.most_common() if what)
        yield [reason, str(found.total()), str(whole[reason]), ", ".join(parts)]


def reason_of(message: str) -> tuple[str, str]:
    """The reason of a refusal, and what of a model it is about; for the tables."""
    for pattern, reason in REASONS:
        match = re.match(pattern, message)
        if match:
            return reason, next(iter(match.groups()), None) or ""
    return OTHER, message


INTRO = """
What becomes of models that others wrote, that were made at random or damaged. *right*: all outputs
are within the tolerances of the oracle, in shape, dtype and numbers; *refused*: an error of one
line that says why; *wrong*: other numbers; *untyped*: an exception that is no error of ours;
*lost*: a crash, or no answer in time. The last three have to be zero but for what is disputed.
"""

_OFFICIAL = """
All cases of `onnx.backend.test` that come with the package `onnx` 1.23, each with the tolerances of
the library and the dtypes of the model. Where ONNX Runtime and the standard differ, as in
`test_resize_downsample_scales_{linear,cubic}_align_corners`, the standard counts. A case that is
refused is tried again with all inputs but the first as constants, as exporters write them.
`test_maxunpool_export_with_output_shape` is [disputed](https://github.com/onnx/onnx/issues/5398):
its indices count in another shape than that of the result, in which ONNX Runtime and PyTorch count.

    python -m benchmarks.conformance           # tries all: four minutes on two cores
    python -m benchmarks.conformance --check   # says which outcomes differ from the table
"""

_WITH_FALLBACK = """
*Plain types*: all inputs and outputs of the model are tensors of float16, float32, float64,
integers of 8 to 64 bits or bool. *Natively*: as above. *With fallback*: those, and the refused ones
that are right as they are given where [ONNX Runtime computes](fallback.md) what is not compiled.
*ONNX Runtime*: of the refused cases that it gets right, how many are right with the fallback.
What is dropped at random is not compared.
"""

_SOAKED = """
*Reported*: small models rebuilt from public bug reports of ONNX Runtime, OpenVINO, TVM, TensorRT,
ncnn, MNN, tract and others, with siblings (`tests/fuzz/reported_*.py` names the reports). *Random*:
one to four operators of all that are supported, odd attributes, opsets 7 to the newest. *Damaged*:
official and random models with attributes, types, shapes, names or bytes changed. Logs are
distilled, explained and compiled from; artifacts are loaded and run. The oracle is ONNX Runtime
without optimisations on the bytes themselves, `onnx.reference` where it has no kernel; *no oracle*:
neither takes the model. A result may differ by what the oracle's own result moves when its inputs
change in their last bits. A killed session is right where no whole line of its log is lost, it
can be resumed, and no process or file is left behind; a hostile candidate is refused where it gets
its status and the good ones beside it their times.

    make soak                                   # all, some hours; exit code 1 where one is bad
    make soak MODELS=500 LOGS=500 KILLS=20 SEED=7
"""
