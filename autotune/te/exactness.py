"""② Bounds within which sums of integers are exact, in any order of their terms."""

from __future__ import annotations

EXACT_IN_FLOAT = 2**24
"""float32 holds all integers up to it."""
LARGEST_BYTES = {"uint8": 255, "int8": 128}
"""The largest magnitude of bytes, by type."""
MOST_TERMS = (2**31 - 1) // 255**2
"""Products of bytes less their zero points whose sum is an int32 for certain."""
MOST_FLOAT_TERMS = EXACT_IN_FLOAT // 255**2
"""The same for float32: of more, digits are lost when the zero point's share is taken away."""
