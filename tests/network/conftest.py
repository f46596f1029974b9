"""What several files of tests share: a process with ONNX Runtime and the provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import autotune
from tests.network.provider_client import Client, exported


@pytest.fixture(scope="module")
def client() -> Any:
    pytest.importorskip("onnxruntime", minversion="1.23")
    made = Client(autotune.onnxruntime_provider())
    with made.process:
        yield made
        made.process.kill()


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("lengths", tmp_path_factory.mktemp("lengths"))
