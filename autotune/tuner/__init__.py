"""⑨ tuner: choice of the next task, its budget, and the loop that joins search to measurement."""

from __future__ import annotations

from autotune.tuner.bound import Resource, arithmetic_s, binding, bound_s, dots_of, traffic
from autotune.tuner.budget import Budget, Spent, StopReason, TaskStop, spent
from autotune.tuner.events import (
    BatchMeasured,
    CandidateBuilt,
    CandidateMeasured,
    DefaultsMeasured,
    DeviceLeftOut,
    DevicesChanged,
    Event,
    FinalistsMeasured,
    NetworkTimed,
    NoiseNoticed,
    OfTarget,
    SessionFinished,
    SessionStarted,
    TaskFinished,
    TaskImproved,
    TaskProgress,
    TaskSelected,
    event_to_json,
    of_target,
)
from autotune.tuner.outlook import Outlook, outlook
from autotune.tuner.protocols import CandidateMeasurer, LearnedModel, Policy, Sink
from autotune.tuner.replay import ReplayMeasurer
from autotune.tuner.scheduler import Scheduler, TaskState
from autotune.tuner.session import Run, Session
from autotune.tuner.task import TuningTask, logged_tasks, networks_of
from autotune.tuner.totals import (
    CallTimes,
    TaskTimes,
    Totals,
    call_times,
    fastest,
    fastest_network,
    totals,
)

__all__ = [
    "BatchMeasured",
    "Budget",
    "CallTimes",
    "CandidateBuilt",
    "CandidateMeasured",
    "CandidateMeasurer",
    "DefaultsMeasured",
    "DeviceLeftOut",
    "DevicesChanged",
    "Event",
    "FinalistsMeasured",
    "LearnedModel",
    "NetworkTimed",
    "NoiseNoticed",
    "OfTarget",
    "Outlook",
    "Policy",
    "ReplayMeasurer",
    "Resource",
    "Run",
    "Scheduler",
    "Session",
    "SessionFinished",
    "SessionStarted",
    "Sink",
    "Spent",
    "StopReason",
    "TaskFinished",
    "TaskImproved",
    "TaskProgress",
    "TaskSelected",
    "TaskState",
    "TaskStop",
    "TaskTimes",
    "Totals",
    "TuningTask",
    "arithmetic_s",
    "binding",
    "bound_s",
    "call_times",
    "dots_of",
    "event_to_json",
    "fastest",
    "fastest_network",
    "logged_tasks",
    "networks_of",
    "of_target",
    "outlook",
    "spent",
    "totals",
    "traffic",
]
