from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results import FOLDER, pages


@pytest.mark.parametrize("name", sorted(pages(FOLDER)))
def test_a_page_of_results_shows_what_its_data_hold(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages(FOLDER)[name]


def test_a_changed_figure_changes_its_page(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.csv"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "networks.csv"
    path.write_text(path.read_text("utf-8").replace(",55.17,", ",44.17,"), encoding="utf-8")
    old, new = pages(FOLDER), pages(tmp_path)
    assert [name for name in old if old[name] != new[name]] == ["networks.md"]
    assert "44.17" in new["networks.md"]
