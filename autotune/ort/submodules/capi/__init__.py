"""⑪ `onnxruntime.capi` of programs that run without onnxruntime."""
