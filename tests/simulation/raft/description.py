"""Events, messages and writes in a few words, for the trace."""

import dataclasses

from metadata.raft.events import Event, MessageReceived, Persist
from metadata.raft.messages.voter_messages import Message
from metadata.raft.proposals import PROPOSAL_ID_BYTES
from metadata.raft.state import Entry, HardState, Snapshot

_IN_THE_ARROW = ("source", "target", "term")


def event_text(event: Event) -> str:
    """Return what a voter is told."""
    if isinstance(event, MessageReceived):
        return f"<- {event.message.source} {message_text(event.message)}"
    return _text(type(event).__name__, event, ())


def message_text(message: Message) -> str:
    """Return a message without its source and target."""
    return _text(f"{type(message).__name__} t{message.term}", message, _IN_THE_ARROW)


def persist_text(persist: Persist) -> str:
    """Return what is written, and what waits for it."""
    then = ", ".join(f"-> {send.message.target} {message_text(send.message)}" for send in persist.then)
    contents = dataclasses.replace(persist, then=())
    return _text("write", contents, ("then",)) + (f" then [{then}]" if then else "")


def _text(title: str, value: Event | Message | Persist, without: tuple[str, ...]) -> str:
    fields = [
        f"{field.name}={_short(shown)}"
        for field in dataclasses.fields(value)
        if field.name not in without and (shown := getattr(value, field.name)) not in (None, ())
    ]
    return " ".join([title, *fields])


def _short(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], bytes):
        return " ".join(payload[PROPOSAL_ID_BYTES:].decode() for payload in value)
    if isinstance(value, tuple) and value and isinstance(value[0], Entry):
        return "[" + " ".join(f"{entry.index}:t{entry.term}" for entry in value) + "]"
    if isinstance(value, Snapshot):
        return f"{value.index}:t{value.term}"
    if isinstance(value, HardState):
        return f"t{value.term},{value.vote or '-'}"
    if isinstance(value, bytes):
        return f"{len(value)}B"
    return str(value)
