"""⑩ A compiled network inside ONNX Runtime: its plug-in provider, and models that name it."""
