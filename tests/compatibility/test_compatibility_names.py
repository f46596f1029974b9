"""Names of the version before are there, or are told to have gone; none goes in silence."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.former_names import FORMER, Former, former_name, renamed
from tests.compatibility.make import surface
from tests.forking import Cli

HERE = Path(__file__).parent
NOW = tuple(map(int, autotune.__version__.split(".")[:2]))
SAID = {("parameters", "compile split"): "`dims` with a most is any size; before the promise"}
"""Kind, and `NAME ATTRIBUTE`, of what went before it could warn, and why."""


def surfaces() -> dict[str, Any]:
    """By version."""
    found = {}
    for path in sorted(HERE.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            if "surface.json" in archive.namelist():
                found[path.stem] = json.loads(archive.read("surface.json"))
    return found


def everything(of: dict[str, dict[str, list[str]]]) -> Iterator[tuple[str, str]]:
    for kind, named in of.items():
        for name, parts in named.items():
            yield kind, name
            yield from ((kind, f"{name} {part}") for part in parts)


def still_taken() -> set[tuple[str, str]]:
    """Former names that warn."""
    found = {("names", name) for name in FORMER}
    for name in autotune.__all__:
        function: Any = getattr(autotune, name)
        keywords = getattr(
            function.__init__ if isinstance(function, type) else function, "__former__", {}
        )
        found |= {("parameters", f"{name} {old}") for old in keywords}
    return found


@pytest.mark.parametrize("version", surfaces())
def test_no_name_of_a_released_version_is_gone_unsaid(version: str) -> None:
    then = tuple(map(int, version.split(".")[:2]))
    gone = (
        {*everything(surfaces()[version])} - {*everything(surface())} - still_taken() - SAID.keys()
    )
    assert then[0] < NOW[0] or NOW[1] - then[1] > 2 or not gone


def test_what_warned_for_a_version_goes_with_the_next() -> None:
    since = [former.since for former in FORMER.values()]
    for name in autotune.__all__:
        function: Any = getattr(autotune, name)
        for one in (function, getattr(function, "__init__", None)):
            since += getattr(one, "__former__", {}).values()
    assert since
    for version in since:
        major, minor = map(int, version.split("."))
        assert (major, minor + 1) >= NOW, f"remove what was renamed in {version}"


@renamed("0.3", old="new")
def taking(new: int = 0) -> int:
    return new


def test_a_former_keyword_warns_and_works() -> None:
    with pytest.warns(
        FutureWarning, match="taking: `old` is `new` since 0.3; the former name goes"
    ):
        assert taking(old=3) == 3  # type: ignore[call-arg]
    with pytest.raises(autotune.UsageError, match="its former name"):
        taking(old=3, new=4)  # type: ignore[call-arg]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taking(new=3) == taking(3) == 3


def test_a_former_name_of_the_package_warns_and_works() -> None:
    table = {"unpack": Former("0.3", "autotune.load", "autotune.network.runtime.loading.load")}
    with pytest.warns(FutureWarning, match=r"autotune.unpack is autotune.load since 0.3"):
        assert former_name("unpack", table) is autotune.load
    with pytest.raises(AttributeError, match="no attribute 'unpack'"):
        autotune.unpack  # noqa: B018


def _load(path: Path, **how: Any) -> Any:
    return autotune.load(path, **how)


@pytest.mark.parametrize("make", [_load, autotune.ExportedModel])
def test_threads_have_one_name(make: Callable[..., Any], tmp_path: Path) -> None:
    """Before the file is looked at."""
    (tmp_path / "nothing.atn").write_text("nothing")
    with (
        pytest.warns(FutureWarning, match="`n_threads` is `threads` since 0.3"),
        pytest.raises(autotune.ArtifactError),
    ):
        make(tmp_path / "nothing.atn", n_threads=1)


def test_an_option_that_went_is_refused_with_what_to_do(cli: Cli) -> None:
    done = cli("compile", "model.onnx", "--split", "batch")
    assert done.code == 2
    assert "--split batch is no option any more" in done.err
    assert "--dim batch=..32" in done.err
