"""⑩ An artifact runs: arguments, working memory, segments of ONNX Runtime, other runtimes."""
