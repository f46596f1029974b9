"""Floor 0: facts about a CPU for the search and the code generator.

`cpu` has the record `Target` and reads this machine; `isa` has instruction sets and costs of cores.
"""

from __future__ import annotations

from autotune.target.cpu import Target as Target
from autotune.target.cpu import difference as difference
from autotune.target.cpu import host_target as host_target
from autotune.target.cpu import missing_features as missing_features
from autotune.target.cpu import needed_features as needed_features
from autotune.target.cpu import parse_target as parse_target
from autotune.target.cpu import runs_here as runs_here
from autotune.target.cpu import target_name as target_name
