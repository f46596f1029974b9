"""⑪ `onnxruntime.transformers` of programs that run without onnxruntime: types of bindings."""
