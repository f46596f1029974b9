"""① Batches of rows of different lengths, as one axis of all their tokens."""
