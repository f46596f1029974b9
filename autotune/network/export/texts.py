"""⑩ Texts of this package: the run time, and templates of what is written for each network.

filled("library.pc", name="resnet", …)      every `@name@` of the file in `templates`, replaced
"""

from __future__ import annotations

import re
from importlib.resources import files

_FIELD = re.compile(r"@(\w+)@")


def text_of(file: str) -> str:
    """A text of this package that is the same for all networks."""
    return files("autotune.network.export").joinpath(file).read_text(encoding="utf-8")


def filled(template: str, /, **known: object) -> str:
    """A template with its fields. Raises KeyError for one that is not given."""
    return _FIELD.sub(lambda field: str(known[field[1]]), text_of(f"templates/{template}"))
