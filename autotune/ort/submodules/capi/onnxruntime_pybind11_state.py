"""⑪ `onnxruntime.capi.onnxruntime_pybind11_state`: where clients look for exceptions."""

from __future__ import annotations

from autotune.ort.exceptions import listed_in_state as __dir__  # noqa: F401
from autotune.ort.exceptions import state_attribute as __getattr__  # noqa: F401
