"""Build the wheel and the sdist of a commit twice, and a bill of materials; they have to be equal.

    python -m release.build [--commit HEAD] [-o dist]

    dist/autotune_compiler-VERSION-py3-none-manylinux_2_28_x86_64.whl   with the provider, by Zig
    dist/autotune_compiler-VERSION.tar.gz
    dist/autotune_compiler-VERSION.cdx.json      CycloneDX
    dist/SHA256SUMS

Of the files of the commit alone, dated as it is, with links to where the repository is (`--home`).
The wheel has ONNX Runtime's provider, compiled by ziglang; what is installed from source compiles
it when it is first asked for. Needs the extra `dev`, and no network.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from release.bill import bill_of

ROOT = Path(__file__).parent.parent
_TEXT: Any = {"capture_output": True, "text": True}
PLATFORM = "manylinux_2_28_x86_64"
"""The oldest glibc whose distributions have a Python that is new enough; exported code needs no
newer one."""
_PROVIDER = "from autotune.network.provider.library import bring_provider as b; b()"


def build(commit: str, dist: Path, home: str = "") -> list[Path]:
    """Build into a folder; returns the files. Raises SystemExit where two builds differ.

    `home`: address of the repository.
    """
    date = git("log", "-1", "--format=%ct", commit).strip()
    once, again = (_built(commit, date, home) for _ in range(2))
    for name in sorted(once.keys() | again.keys()):
        if once.get(name) != again.get(name):
            raise SystemExit(f"error: two builds of {name} differ")
    wheel = next(name for name in once if name.endswith(".whl"))
    version = wheel.split("-")[1]
    made = {**once, f"autotune_compiler-{version}.cdx.json": bill_of(once[wheel], date)}
    sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(made.items())]
    made["SHA256SUMS"] = "".join(sums).encode()
    dist.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (dist / name).write_bytes(data)
    return [dist / name for name in made]


def git(*words: str) -> str:
    """What git says of this repository."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    )
    return done.stdout


def _built(commit: str, date: str, home: str) -> dict[str, bytes]:
    """Wheel and sdist by name, from a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "source"), Path(folder, "dist")
        checkout(commit, source)
        if home:
            link(source, home, commit)
        env = {**os.environ, "SOURCE_DATE_EPOCH": date, "PYTHONPATH": os.pathsep.join(sys.path)}
        options = f"--config-setting=--build-option=--plat-name={PLATFORM}"
        pack = ["-m", "build", "--no-isolation", "-o", str(out), "."]
        for words in ([*pack, "--sdist"], ["-c", _PROVIDER], [*pack, "--wheel", options]):
            command = [sys.executable, *words]
            done = subprocess.run(command, cwd=source, env=env, umask=0o022, **_TEXT)
            if done.returncode:
                raise SystemExit(f"error: {' '.join(command)}\n{done.stdout}{done.stderr}")
        return {p.name: _same(p, int(date)) for p in out.iterdir()}


def checkout(commit: str, folder: Path) -> None:
    """The files of a commit in a new folder, with the same modes whatever the umask."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            files.extract(member, folder, filter="tar")


def link(source: Path, home: str, commit: str) -> None:
    """Name the repository in the metadata, and in the links of the README, which are relative."""
    at = f"{home}/blob/{git('rev-parse', commit).strip()}"
    readme, project = source / "README.md", source / "pyproject.toml"
    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"(\]\()(?![a-z]+:|#)([^)]+\.svg)\)", rf"\1{at}/\2?raw=true)", text)
    readme.write_text(re.sub(r"(\]\()(?![a-z]+:|#)", rf"\1{at}/", text), encoding="utf-8")
    urls = {"Repository": home, "Changelog": f"{at}/CHANGELOG.md", "Issues": f"{home}/issues"}
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    with project.open("a", encoding="utf-8") as file:
        file.write(f"\n[project.urls]\n{table}")


def _same(path: Path, date: int) -> bytes:
    """A file without what differs from build to build: an sdist has times and users in it."""
    if path.suffix == ".whl":
        return path.read_bytes()
    made = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=date) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as out,
        tarfile.open(path) as files,
    ):
        for member in sorted(files, key=lambda one: one.name):
            data = files.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            out.addfile(member, data)
    return made.getvalue()


def _home() -> str:
    """Where a workflow runs, that repository."""
    here = [os.environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")]
    return "/".join(here) if all(here) else ""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Build the distributions of a commit, twice.")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--home", default=_home(), help="Address of the repository.")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    for path in build(given.commit, given.output, given.home):
        print(f"{path.stat().st_size:>10,}  {path}")


if __name__ == "__main__":
    main()
