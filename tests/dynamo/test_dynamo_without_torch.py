"""The backend of `torch.compile` where PyTorch may not be installed."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from autotune.errors import MissingDependency

ROOT = Path(__file__).parent.parent.parent


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, name = project["entry-points"]["torch_dynamo_backends"]["autotune"].split(":")
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
def test_a_missing_package_is_told_in_one_line(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.dynamo import backend

    def found(name: str) -> object:
        return None if name == missing else object()

    monkeypatch.setattr("autotune.dynamo.find_spec", found)
    with pytest.raises(MissingDependency, match=missing) as caught:
        backend(None, ())
    assert caught.value.message == f"{missing} is not installed"
    assert "autotune-compiler[torch]" in caught.value.hint
