"""⑪ `onnxruntime.capi.onnxruntime_inference_collection`: sessions and values."""

from __future__ import annotations

from autotune.ort.names import attribute as __getattr__  # noqa: F401
from autotune.ort.names import listed as __dir__  # noqa: F401
