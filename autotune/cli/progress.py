"""⑪ A session's events for scripts: one JSON object per line."""

from __future__ import annotations

from autotune.cli.console import json_text, put
from autotune.display.renderers import Renderer
from autotune.tuner import Event, event_to_json


class JsonLines(Renderer):
    """Every event as one JSON object per line on stdout."""

    def show(self, event: Event) -> None:
        """Write and flush, so that a reader can follow."""
        put(json_text(event_to_json(event)))
