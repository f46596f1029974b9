"""① From an ONNX file to a graph of one opset, with known constants and types."""

from __future__ import annotations
