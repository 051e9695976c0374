"""The events and actions that leaders and followers share."""

from envelope.types import Offset
from envelope.values import value

# --- events -------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class LogStartMoved:
    """Retention or a request has removed the records before ``log_start_offset``."""

    log_start_offset: Offset


@value(frozen=True, slots=True)
class Tick:
    """Time has passed; due at ``wake_at`` of the machine, harmless before."""


# --- actions ------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Every record below ``high_watermark`` is committed: release acks, wake readers."""

    high_watermark: Offset
