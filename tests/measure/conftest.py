"""Makes `measure_fakes` importable here and in worker processes, which get this sys.path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
