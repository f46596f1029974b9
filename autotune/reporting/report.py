"""⑧ A report: the figures of a search, beside those of another and of the compiled network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.brief import brief
from autotune.codec import to_json
from autotune.network.bench.profile import NetworkProfile
from autotune.reporting import html
from autotune.reporting.blocks import Chapter
from autotune.reporting.comparison import SearchComparison
from autotune.reporting.document import document
from autotune.reporting.figures import SearchFigures
from autotune.reporting.markdown import markdown


@brief
@dataclass(frozen=True, slots=True)
class SearchReport:
    """Figures of a search. `profiles`: of the compiled network, by the shapes of its inputs.
    `other`: the search that it is compared with, which came before. Notebooks show it as a page."""

    figures: SearchFigures
    profiles: Mapping[str, NetworkProfile] = field(default_factory=dict)
    other: SearchFigures | None = None
    comparison: SearchComparison | None = None

    @property
    def title(self) -> str:
        """The model and its CPU."""
        return f"autotune: {self.figures.model} on {self.figures.cpu}"

    def html(self, note: Callable[[str], None] | None = None) -> str:
        """One file without scripts; `note`: told where plots could not be drawn.

        Raises MissingDependency without the extra `report`.
        """
        return html.page(self.title, self._chapters(), note)

    def markdown(self) -> str:
        """Words and tables, for a pull request."""
        return markdown(self.title, self._chapters())

    def to_json(self) -> dict[str, Any]:
        """Every figure, as `docs/report.md` says."""
        found: dict[str, Any] = {"search": to_json(self.figures)}
        if self.profiles:
            found["networks"] = {name: p.to_json() for name, p in self.profiles.items()}
        if self.comparison and self.other:
            found |= {"comparison": to_json(self.comparison), "before": to_json(self.other)}
        return found

    def _chapters(self) -> list[Chapter]:
        return document(self.figures, self.profiles, self.other, self.comparison)

    def _repr_html_(self) -> str:
        return html.fragment(block for chapter in self._chapters() for block in chapter.blocks)
