"""⑪ The vocabulary of sketch rules; `autotune.api.rules` defines a rule."""

from __future__ import annotations

from autotune.schedule.steps import Annotate as Annotate
from autotune.schedule.steps import CacheRead as CacheRead
from autotune.schedule.steps import CacheTerms as CacheTerms
from autotune.schedule.steps import CacheWrite as CacheWrite
from autotune.schedule.steps import ComputeAt as ComputeAt
from autotune.schedule.steps import ComputeInline as ComputeInline
from autotune.schedule.steps import FlatTaps as FlatTaps
from autotune.schedule.steps import Hole as Hole
from autotune.schedule.steps import Interleave as Interleave
from autotune.schedule.steps import Pack as Pack
from autotune.schedule.steps import Parallel as Parallel
from autotune.schedule.steps import Parts as Parts
from autotune.schedule.steps import Prefetch as Prefetch
from autotune.schedule.steps import Reorder as Reorder
from autotune.schedule.steps import RFactor as RFactor
from autotune.schedule.steps import Split as Split
from autotune.schedule.steps import WholeTerms as WholeTerms
from autotune.search.partial import Partial as Partial
from autotune.search.partial import Rule as Rule
from autotune.search.partial import lanes_of as lanes_of
from autotune.search.space import Role as Role
from autotune.search.space import Tag as Tag
from autotune.target import Target as Target
