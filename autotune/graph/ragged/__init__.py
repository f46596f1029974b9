"""① Batches of rows of different lengths, as one axis of all their tokens."""

from __future__ import annotations

TOKENS, SLOTS = ".tokens", ".slots"
"""End the names of the inputs that say where tokens are; before them is that of the mask."""
NUMBER = "tokens"
"""The length that is the number of tokens."""
