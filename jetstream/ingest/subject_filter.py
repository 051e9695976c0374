"""The filter of a subscription: messages whose subjects its pattern matches.

NATS delivers by subscription, and the number of the subscription stands in the same line as the subject. A
message that claims the number of another subscription is of none.
"""

from typing import Final

from jetstream.ingest.messages import MessageBlock

KNOWN_SUBJECTS_MAX: Final = 4096
"""Subjects remembered as matching; beyond it all are forgotten."""

_REMEMBERED_BYTES_MAX: Final = 256


class SubjectFilter:
    """Of one subscription. Subjects come again and again: a known one costs one look at a set."""

    def __init__(self, pattern: str) -> None:
        """Let pass what NATS delivers to a subscription to ``pattern``."""
        self._tokens = pattern.encode().split(b".")
        self._known: set[bytes] = set()

    def passing(self, messages: MessageBlock) -> MessageBlock:
        """Return the messages that match, in order: the block itself if all do."""
        subjects, known = messages.subjects, self._known
        distinct = {subjects[0]} if subjects.count(subjects[0]) == len(subjects) else set(subjects)
        if distinct <= known:
            return messages
        strangers = {subject for subject in distinct - known if not self._matches(subject)}
        matching = distinct - strangers
        if len(known) + len(matching) > KNOWN_SUBJECTS_MAX:
            known.clear()
        if len(matching) <= KNOWN_SUBJECTS_MAX:
            known.update(subject for subject in matching if len(subject) <= _REMEMBERED_BYTES_MAX)
        if not strangers:
            return messages
        return messages.select([subject not in strangers for subject in subjects])

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
