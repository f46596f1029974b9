"""A module of PyTorch's, compiled by autotune: the largest difference from PyTorch itself.

pip install 'autotune-compiler[torch]'
python examples/torch_backend.py
"""

from __future__ import annotations

import torch

model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)
).eval()
compiled = torch.compile(model, backend="autotune")
x = torch.randn(4, 64)
with torch.inference_mode():
    print((compiled(x) - model(x)).abs().max())
