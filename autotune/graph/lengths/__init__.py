"""① One network for every length: definitions at a few numbers -> definitions that follow them."""
