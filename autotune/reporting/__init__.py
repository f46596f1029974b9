"""⑧ A log as a report: figures as plain records, what they say, and pages of it."""

from __future__ import annotations
