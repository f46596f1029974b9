"""① Graph to graph: fewer ways of writing things, and the layout in which tensors are stored."""

from __future__ import annotations
