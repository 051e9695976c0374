"""The events and actions that leaders and followers share."""

from dataclasses import dataclass

from envelope.types import Offset

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Retention or a request has removed the records before ``log_start_offset``."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at ``wake_at`` of the machine, harmless before."""


# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Every record below ``high_watermark`` is committed: release acks, wake readers."""

    high_watermark: Offset
