"""What makes a release: docs/releasing.md."""

from __future__ import annotations
