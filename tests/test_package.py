from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune import errors

ROOT = Path(__file__).parent.parent
HEAVY = {"lightgbm", "llvmlite", "numpy", "onnx", "rich"}


@pytest.mark.parametrize(
    "code",
    [
        "import autotune",
        "from autotune.cli.main import run; run(['--help'])",
        "from autotune.cli.main import run; run(['nonsense'])",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    check = f"import sys; {code}; sys.exit(' '.join({HEAVY!r} & set(sys.modules)) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists() -> None:
    for name in autotune.__all__:
        assert getattr(autotune, name)
    with pytest.raises(AttributeError, match="no attribute 'tunes'"):
        autotune.tunes  # noqa: B018


def test_the_version_is_that_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{autotune.__version__}"' in text


def test_every_error_can_be_caught_by_its_name() -> None:
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, errors.AutotuneError):
            assert getattr(autotune, name) is error


_WINDOWS = "sys.platform = 'win32'; sys.modules['fcntl'] = None"
_OTHER = "import platform; platform.machine = lambda: 'ppc64le'"
_COMMAND = "import autotune_command; sys.argv = ['autotune', 'tasks']; autotune_command.main()"
_MODULE = "import runpy; runpy._run_module_as_main('autotune')"


@pytest.mark.parametrize(
    ("there", "use", "text"),
    [
        (_WINDOWS, "import autotune", "this is Windows"),
        ("sys.platform = 'darwin'", "import autotune.te", "this is macOS"),
        (_OTHER, "from autotune import tune", "this is Linux on ppc64le"),
        (_OTHER, "import autotune; autotune.te", "this is Linux on ppc64le"),
        (_WINDOWS, _COMMAND, "this is Windows"),
        (_WINDOWS, _MODULE, "this is Windows"),
        (_OTHER, _COMMAND, "this is Linux on ppc64le"),
        (_OTHER, _MODULE, "this is Linux on ppc64le"),
    ],
)
def test_another_platform_is_told_what_is_missing(there: str, use: str, text: str) -> None:
    code = use if "main" in use else f"try:\n {use}\nexcept ImportError as e:\n sys.exit(str(e))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {there}\n{code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"autotune needs Linux on x86-64 or AArch64; {text}" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("use", [_COMMAND, _MODULE])
def test_the_command_beside_numpy_alone_says_what_it_needs(use: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['click'] = None\n{use}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    error, hint = done.stderr.splitlines()
    assert done.returncode == 1
    assert error == "error: the command needs click, which is not installed"
    assert hint.startswith("hint: install the package with its dependencies")


def test_a_library_that_was_exported_is_loaded_on_any_cpu() -> None:
    code = f"{_OTHER}; import autotune; autotune.ExportedModel; autotune.UnsupportedPlatform"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


UNTYPED = (
    *("numpy", "onnx", "autotune.codegen", "autotune.display", "autotune.graph"),
    *("autotune.loopir", "autotune.measure", "autotune.network", "autotune.records"),
    *("autotune.reporting", "autotune.search", "autotune.tuner"),
)
"""No type that the script has comes from these: `make types` checks them all, in half a minute."""


@pytest.mark.slow
def test_a_type_checker_finds_the_types_of_an_install(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import autotune\nfrom autotune import te\n"
        "def f() -> te.Tensor:\n"
        "    x = te.placeholder(8, 'x')\n    return te.compute(8, lambda i: x[i] + 1, 'y')\n"
        "reveal_type(autotune.Task(f).build())\nautotune.Task(f).build(3)\n"
    )
    sections = ",".join(f"{name}.*" for name in UNTYPED)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n[mypy-{sections}]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'script.py:6: note: Revealed type is "autotune.api.te.task.Function"' in done.stdout
    assert 'script.py:7: error: Argument 1 to "build"' in done.stdout
