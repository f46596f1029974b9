"""⑪ Examples below the help of each command."""

from __future__ import annotations

EXAMPLES = {
    "demo": ("", "--time 60s -o demo"),
    "tune": (
        "model.onnx --time 10m",
        "model.onnx --dim batch=1,8 --threads 2 --log model.jsonl",
        "kernels.py:matmul --args 512,512,512 --trials 200",
    ),
    "resume": ("model.jsonl --time 5m",),
    "distill": ("monday.jsonl tuesday.jsonl -o best.jsonl", "model.jsonl --store"),
    "store": ("list", "merge other/ --store s3://bucket/records"),
    "compile": (
        "model.onnx --log model.jsonl -o model.atn",
        "model.onnx --dim sequence=16..128:16 --precision bf16",
        "model.onnx --target neoverse-v1 --no-check",
    ),
    "quantise": (
        "model.onnx --data samples.npz -o model.int8.onnx",
        "model.onnx --data samples.npz --dim batch=1 --labels scores --agreement 0.99",
    ),
    "run": ("model.atn --input image=x.npy -o y.npz",),
    "bench": (
        "model.onnx --against onnxruntime",
        "model.atn --per-task",
        "decoder.onnx --tokens 128+64 --against onnxruntime",
        "model.atn --save base.json",
        "new.atn --compare base.json --fail-above 1.05",
    ),
    "tasks": ("model.onnx", "model.onnx --dag --format json"),
    "target": ("znver5 -o machine.json", "--list"),
    "export": ("model.atn -o lib", "model.atn -o lib --weights separate"),
    "measure": ("mine.py --log model.jsonl --task 3",),
    "explain": ("model.jsonl --task 3", "--store --task 23fbe4 --stage asm"),
    "info": ("", "--no-measure --format json"),
    "report": ("model.jsonl -o report.html", "model.jsonl --format md"),
    "schema": ("bench", ""),
    "worker": ("dask://scheduler:8786", "dask://scheduler:8786 --runner 'ssh board'"),
}
"""By the names of commands: what may follow them."""


def examples_text(command: str) -> str:
    """The examples of a command, as click keeps them in lines; empty without any."""
    lines = [f"  autotune {command} {text}".rstrip() for text in EXAMPLES.get(command, ())]
    return "\n".join(["\b", "Examples:", *lines]) if lines else ""
