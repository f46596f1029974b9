"""What loading a network takes: no compiler, and memory that processes share."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autotune.codegen.memory import aligned
from autotune.errors import UsageError
from autotune.network.runtime.loading import load, read_artifact
from autotune.network.runtime.runtime import Model
from tests.network.hand_made import N, reversing

ROOT = Path(__file__).parent.parent.parent
CONSTANT_BYTES = 24 << 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with constants that are large beside what a process has else."""
    artifact = reversing(4, 2)
    constants = aligned((CONSTANT_BYTES,), "uint8")
    constants[:] = np.arange(CONSTANT_BYTES, dtype=np.uint32).astype(np.uint8)
    constants[:64] = artifact.constants
    artifact.__dict__["constants"] = constants
    path = tmp_path_factory.mktemp("load") / "net.atn"
    artifact.save(path)
    return path


IMPORTS = """
import sys
import numpy
import autotune
model = autotune.load(sys.argv[1])
found = model.run([numpy.zeros((2, 48), numpy.float32)])["y"]
assert (found == 4).all()
packages = {name.split(".")[0] for name in sys.modules}
print(*sorted(packages & {"llvmlite", "onnx", "google", "ml_dtypes", "lightgbm", "rich", "click"}))
print(*sorted(name for name in sys.modules if name.startswith(("autotune.te", "autotune.api"))))
"""


def test_loading_and_running_takes_numpy_alone(saved: Path) -> None:
    command = [sys.executable, "-c", IMPORTS, str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "\n\n"), done.stdout + done.stderr


def mappings(path: Path) -> Iterator[dict[str, int]]:
    """Fields of /proc/self/smaps in kB, of each mapping of a file that something still uses."""
    gc.collect()
    found: dict[str, int] | None = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            if found is not None:
                yield found
            found = {} if line.endswith(str(path)) else None
        elif found is not None and rest.endswith(" kB"):
            found[name[:-1]] = int(rest.split()[0])


def test_constants_are_pages_of_the_file_that_others_have_as_well(saved: Path) -> None:
    first = load(saved, 1)
    second = load(saved, 1)
    found = list(mappings(saved))
    assert len(found) == 2
    for mapping in found:
        assert mapping["Rss"] >= CONSTANT_BYTES >> 10  # the digest was compared
        assert mapping["Private_Dirty"] == 0
        assert mapping["Pss"] <= 0.6 * mapping["Rss"]
    assert not first.artifact.constants.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        second.artifact.constants[0] = 1


def test_private_memory_is_no_part_of_the_file(saved: Path) -> None:
    model = load(saved, 1, memory="private")
    assert not list(mappings(saved))
    assert np.array_equal(model.artifact.constants, load(saved, 1).artifact.constants)


def test_another_kind_of_memory_is_refused(saved: Path) -> None:
    with pytest.raises(UsageError, match="no memory 'huge'") as caught:
        load(saved, 1, memory="huge")
    assert "shared, private" in caught.value.hint


@pytest.mark.parametrize("memory", ["shared", "private"])
def test_a_loaded_model_outlives_its_file(saved: Path, tmp_path: Path, memory: str) -> None:
    path = tmp_path / "net.atn"
    path.write_bytes(saved.read_bytes())
    model = load(path, 1, memory)
    reversing(5).save(path)
    assert load(path, 1).artifact.kernels != model.artifact.kernels
    path.unlink()
    assert np.array_equal(model.run([np.zeros((2, N // 2), np.float32)])["y"], np.full(N, 4.0))


def test_mappings_go_with_the_last_user_of_their_constants(saved: Path) -> None:
    n_files = len(os.listdir("/proc/self/fd"))
    model = load(saved, 1)
    constants = model.artifact.constants
    assert len(os.listdir("/proc/self/fd")) == n_files
    del model
    assert len(list(mappings(saved))) == 1
    assert constants[64:].any()
    del constants
    assert not list(mappings(saved))


def test_an_address_in_the_file_that_vectors_cannot_read_is_copied(
    saved: Path, tmp_path: Path
) -> None:
    """As other programs write zip files."""
    import zipfile

    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(tmp_path / "other.atn", "w") as new:
        for name in ("constants.bin", *(n for n in old.namelist() if n != "constants.bin")):
            new.writestr(name, old.read(name))
    artifact = read_artifact(tmp_path / "other.atn")
    assert artifact.constants.ctypes.data % 64 == 0
    assert not list(mappings(tmp_path / "other.atn"))
    assert Model(artifact, 1).run([np.zeros((2, N // 2), np.float32)])["y"][0] == 4
