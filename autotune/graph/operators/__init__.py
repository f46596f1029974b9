"""① What every operator means: ONNX semantics as te computations; `table` has them all."""

from __future__ import annotations
