"""① Definitions of operators: ONNX semantics as te computations; `table` has them all."""

from __future__ import annotations
