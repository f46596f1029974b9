"""⑩ A compiled network as a library of C: no Python, no LLVM, libc alone."""
