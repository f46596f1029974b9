"""⑩ Float32 models as models of integers: ONNX Runtime's quantiser, and how alike outputs are."""
