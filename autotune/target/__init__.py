"""Floor 0: facts about a CPU for the search and the code generator.

`cpu` has the record `Target` and reads this machine, `naming` describes another one; `isa` has
instruction sets and costs of cores.
"""

from __future__ import annotations

from autotune.target.cpu import Target as Target
from autotune.target.cpu import difference as difference
from autotune.target.cpu import host_target as host_target
from autotune.target.cpu import llvm_version as llvm_version
from autotune.target.cpu import missing_features as missing_features
from autotune.target.cpu import needed_features as needed_features
from autotune.target.cpu import runs_here as runs_here
from autotune.target.cpu import with_threads as with_threads
from autotune.target.naming import common_target as common_target
from autotune.target.naming import demands as demands
from autotune.target.naming import is_of_file as is_of_file
from autotune.target.naming import parse_target as parse_target
from autotune.target.naming import target_name as target_name
from autotune.target.naming import target_names as target_names
from autotune.target.naming import target_text as target_text
