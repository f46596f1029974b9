"""⑪ `onnxruntime.capi._pybind_state`: where clients look for names."""

from __future__ import annotations

from autotune.ort.exceptions import listed_in_state as __dir__  # noqa: F401
from autotune.ort.exceptions import state_attribute as __getattr__  # noqa: F401
