"""⑩ A compiled network beside its original file: oracles, tolerances, accuracy."""
