"""The steps of a release that need no network and no account."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import autotune
from release.build import build
from release.prepare import following, notes, released

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n* New.\n\n## 0.2.0 (2026-11-27)\n\n* Old.\n"
HOME = "https://example.org/of/it"


def test_what_is_unreleased_becomes_a_version() -> None:
    text = released(CHANGELOG, "0.3.0", "2026-12-01")
    assert "## Unreleased\n\n## 0.3.0 (2026-12-01)\n\n* New.\n\n## 0.2.0" in text
    assert notes(text, "0.3.0") == "* New.\n"
    assert notes(text, "0.2.0") == "* Old.\n"
    with pytest.raises(SystemExit, match="nothing is unreleased"):
        released(text, "0.4.0", "2026-12-02")
    with pytest.raises(SystemExit, match="says nothing of 9"):
        notes(text, "9.9.9")


def test_versions_follow_one_another() -> None:
    assert following("0.2.9") == ["0.2.10", "0.3.0", "1.0.0"]


def test_the_changelog_says_something_of_this_version() -> None:
    assert notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), autotune.__version__)


def test_what_a_version_changed_is_a_line_each() -> None:
    """Headings and bullets alone, since 0.2.0."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    since = text[text.index("## Unreleased") : text.index("## 0.1.0")].splitlines()
    assert not [line for line in since if line and not re.match(r"#{2,3} \S|\* \S.*\.$", line)]
    assert max(map(len, since)) <= 120


@pytest.mark.parametrize(
    "path", [*Path(ROOT, ".github", "workflows").glob("*.yml"), ROOT / "action.yml"], ids=str
)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    used = re.findall(r"uses: (\S+)( # v[\d.]+)?", text)
    assert used
    for name, version in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name), name
        assert version, f"{name}: which version is it?"


def test_images_run_as_a_user() -> None:
    stages = (ROOT / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[1:]
    assert [stage.split(" AS ")[1].split()[0] for stage in stages] == ["run", "compile"]
    for stage in stages:
        assert "\nUSER autotune\n" in stage
        assert "\nHEALTHCHECK" in stage


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two builds of the last commit, which were the same."""
    for name in ("build", "cyclonedx"):
        pytest.importorskip(name)
    if not (ROOT / ".git").exists():
        pytest.skip("a source distribution has no commits")
    folder = tmp_path_factory.mktemp("dist")
    build("HEAD", folder, HOME)
    return folder


@pytest.mark.slow
@pytest.mark.sampled(0)
def test_a_wheel_has_the_package_alone(dist: Path) -> None:
    wheel = next(dist.glob("*.whl"))
    assert wheel.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        info = next(name for name in names if name.endswith("METADATA"))
        metadata = files.read(info).decode()
    of = {name.split("/")[0] for name in names}
    assert of == {"autotune", "autotune_operators", "autotune_command.py", info.split("/")[0]}
    assert f"Project-URL: Repository, {HOME}" in metadata
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert links
    assert all(re.match(r"https://|#", link) for link in links), links


REGISTERS = """
import autotune, onnxruntime
place = autotune.onnxruntime_provider()
onnxruntime.register_execution_provider_library("autotune", str(place))
print(place, [d.ep_name for d in onnxruntime.get_ep_devices()])
"""


@pytest.mark.slow
@pytest.mark.sampled(0)
def test_a_wheel_brings_the_provider_of_onnxruntime(dist: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", minversion="1.23")
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as files:
        files.extractall(tmp_path / "package")
    env = {"PYTHONPATH": str(tmp_path / "package"), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", REGISTERS], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    place, names = done.stdout.split(" ", 1)
    assert place.startswith(str(tmp_path / "package"))
    assert "AutotuneExecutionProvider" in names
    with tarfile.open(next(dist.glob("*.tar.gz"))) as files:
        assert not any(name.endswith(".so") for name in files.getnames())


@pytest.mark.slow
@pytest.mark.sampled(0)
def test_a_source_distribution_can_be_tested_from(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as files:
        files.extractall(tmp_path, filter="data")
    source = next(tmp_path.iterdir())
    for name in ("Makefile", "constraints.txt", "docs/conf.py", "tests/assets", ".ci/run"):
        assert (source / name).exists(), name
    kept = {p.name for p in Path(ROOT, "tests").rglob("*.zip")}
    assert {p.name for p in Path(source, "tests").rglob("*.zip")} == kept
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/test_units.py",
    ]
    done = subprocess.run(
        command, cwd=source, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.sampled(0)
def test_the_bill_of_materials_names_what_is_required(dist: Path) -> None:
    bill = json.loads(next(dist.glob("*.cdx.json")).read_text())
    parts = {part["name"]: part for part in bill["components"]}
    assert bill["specVersion"] == "1.6"
    assert parts["numpy"]["scope"] == "required"
    assert parts["lightgbm"]["scope"] == "optional"
    assert all("version" in part for part in parts.values() if part["scope"] == "required")
    assert "pytest" not in parts
