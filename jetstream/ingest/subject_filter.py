"""The filter of a subscription: messages whose subjects its pattern matches.

NATS delivers by subscription, and the number of the subscription stands in the same line as the subject. A
message that claims the number of another subscription is of none.
"""

from collections.abc import Callable
from typing import Final

from jetstream.ingest.messages import MessageBlock

KNOWN_SUBJECTS_MAX: Final = 4096
"""Subjects remembered as matching; beyond it all are forgotten."""

_REMEMBERED_BYTES_MAX: Final = 256


class SubjectFilter:
    """Of one subscription. Subjects come again and again: a known one costs one look at a set."""

    def __init__(
        self, pattern: str, deliver: Callable[[MessageBlock], None], dropped: Callable[[int], None]
    ) -> None:
        """Let pass what NATS delivers to a subscription to ``pattern``.

        Args:
            pattern: of the subscription.
            deliver: gets the messages that match.
            dropped: called with the number of messages that do not.
        """
        self._tokens = pattern.encode().split(b".")
        self._deliver = deliver
        self._dropped = dropped
        self._known: set[bytes] = set()

    def receive(self, messages: MessageBlock) -> None:
        """Deliver the messages that match, in order: the block itself if all do."""
        subjects = messages.subjects
        distinct = {subjects[0]} if subjects.count(subjects[0]) == len(subjects) else set(subjects)
        if not distinct <= self._known and (strangers := self._strangers(distinct)):
            passing = messages.select([subject not in strangers for subject in subjects])
            self._dropped(messages.count - passing.count)
            if not passing.count:
                return
            messages = passing
        self._deliver(messages)

    def _strangers(self, distinct: set[bytes]) -> set[bytes]:
        """Return the subjects that do not match; remember those that do."""
        known = self._known
        strangers = {subject for subject in distinct - known if not self._matches(subject)}
        matching = distinct - strangers
        if len(known) + len(matching) > KNOWN_SUBJECTS_MAX:
            known.clear()
        if len(matching) <= KNOWN_SUBJECTS_MAX:
            known.update(subject for subject in matching if len(subject) <= _REMEMBERED_BYTES_MAX)
        return strangers

    def _matches(self, subject: bytes) -> bool:
        tokens = subject.split(b".")
        wanted = self._tokens
        if wanted[-1] == b">":
            wanted = wanted[:-1]
            if len(tokens) <= len(wanted):
                return False
            tokens = tokens[: len(wanted)]
        return len(tokens) == len(wanted) and all(
            each in (b"*", token) for each, token in zip(wanted, tokens, strict=True)
        )
