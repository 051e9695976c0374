"""Every error a caller can be told, with who is at fault and what to do next.

An error class is registered under its ``err_code``, a stable snake_case word used by the request API,
the socket protocol and the client library alike; ``status`` follows HTTP as NATS's own API does.

A publish ack has no place for the word: its ``error`` holds exactly NATS's three keys. There ``ack_code``, a
number that no other class has, says which error it is: NATS JetStream's own number where that has one for
the same case, so that users of the official clients meet what they know, otherwise one of `OWN_ACK_CODES`.

Source: nats-server ``errors.json``, whose numbers begin at 10002 and grow by one; nats.go reads them into 16
bits.
"""

from typing import ClassVar, Final

OWN_ACK_CODES: Final = range(60_000, 61_000)
"""Numbers of ours, far above those NATS has given out and within the 16 bits its clients have for them."""

_REGISTRY: Final[dict[str, type["JetstreamError"]]] = {}


class JetstreamError(Exception):
    """Root of all errors; subclasses set the class attributes."""

    err_code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    ack_code: ClassVar[int] = 60_000
    retriable: ClassVar[bool] = False

    def __init__(self, description: str, /, **detail: int | str) -> None:
        """Keep ``description`` for people and ``detail`` (the numbers a client needs) for machines."""
        super().__init__(description)
        self.description = description
        self.detail = detail

    def __init_subclass__(cls) -> None:
        """Register the class; two classes with one ``err_code`` or ``ack_code`` are a bug found at import."""
        code = cls.__dict__.get("err_code")
        if code is None:
            return
        if "ack_code" not in cls.__dict__:
            raise TypeError(f"err_code {code!r} has no ack_code of its own")
        for other in _REGISTRY.values():
            if cls.err_code == other.err_code or cls.ack_code == other.ack_code:
                raise TypeError(f"{code!r}, {cls.ack_code}: taken by {other.__name__}")
        _REGISTRY[code] = cls


def registry() -> dict[str, type[JetstreamError]]:
    """Return a copy of all registered classes by ``err_code``."""
    return dict(_REGISTRY)


def error_from_wire(err_code: str, description: str, detail: dict[str, int | str]) -> JetstreamError:
    """Rebuild the error a peer reported; an unknown code becomes the root class."""
    return _REGISTRY.get(err_code, InternalError)(description, **detail)


class InternalError(JetstreamError):
    """A fault of ours, reported instead of hidden."""

    err_code = "internal"
    ack_code = 60_000


# --- the caller's fault: tell, do not retry -------------------------------------------------------


class RequestError(JetstreamError):
    """The request can never succeed as it is."""

    err_code = "bad_request"
    status = 400
    ack_code = 10_003


class InvalidName(RequestError):
    """A stream or consumer name outside the grammar."""

    err_code = "invalid_name"
    ack_code = 60_001


class InvalidSubject(RequestError):
    """A subject or pattern that NATS would not accept, or that we must not bind."""

    err_code = "invalid_subject"
    ack_code = 60_002


class InvalidConfig(RequestError):
    """A stream configuration whose parts contradict each other or a limit."""

    err_code = "invalid_config"
    ack_code = 10_052


class UnknownStream(RequestError):
    """No stream of that name."""

    err_code = "stream_not_found"
    status = 404
    ack_code = 10_059


class StreamExists(RequestError):
    """The name is taken by a stream with another configuration."""

    err_code = "stream_exists"
    ack_code = 10_058


class OffsetOutOfRange(RequestError):
    """The offset is below the log start or beyond the log end; ``detail`` names both."""

    err_code = "offset_out_of_range"
    status = 416
    ack_code = 60_003


class DivergedHistory(RequestError):
    """The reader's last epoch does not fit the log: what it read was never committed here (KIP-320)."""

    err_code = "diverged_history"
    status = 409
    ack_code = 60_004


class StreamRecreated(RequestError):
    """The stream was deleted and created again: the caller's offsets belong to its former life."""

    err_code = "stream_recreated"
    status = 409
    ack_code = 60_005


class RecordTooLarge(RequestError):
    """The message exceeds the stream's or the system's limit."""

    err_code = "record_too_large"
    ack_code = 10_054


class InvalidHeader(RequestError):
    """A header of ours with a value outside its grammar."""

    err_code = "invalid_header"
    ack_code = 60_006


class InvalidEnvelope(RequestError):
    """An envelope whose checksum fits and whose header or payload is not what the format says."""

    err_code = "invalid_envelope"
    ack_code = 60_030


class InvalidCursor(RequestError):
    """A message published as a consumer's cursor is none, or has a name or key that no cursor can have."""

    err_code = "invalid_cursor"
    ack_code = 60_033


class StreamReadOnly(RequestError):
    """The stream is ``read_only``: it takes no messages until that is switched off; nothing was stored.

    NATS's own number is that of its sealed streams, which never take messages again.
    """

    err_code = "stream_read_only"
    ack_code = 10_109


class WrongExpectedStream(RequestError):
    """``Nats-Expected-Stream`` names a stream that is not bound to the subject."""

    err_code = "wrong_expected_stream"
    ack_code = 10_060


class WrongLastSequence(RequestError):
    """``Nats-Expected-Last-Sequence`` differs from the stream's last sequence."""

    err_code = "wrong_last_sequence"
    ack_code = 10_071


class WrongLastMessageId(RequestError):
    """``Nats-Expected-Last-Msg-Id`` differs from the id of the stream's last record."""

    err_code = "wrong_last_msg_id"
    ack_code = 10_070


class TxidDecreasing(RequestError):
    """``Jetstream-Txid`` is below the stream's last one."""

    err_code = "txid_decreasing"
    ack_code = 60_007


class SequencePassed(RequestError):
    """A later message of the session is stored, and it is not known whether this one ever was.

    It was stored so long ago that it is forgotten, or it was lost or refused and left behind: its session has
    left out numbers, or has messages that do not name the one before them.
    """

    err_code = "sequence_passed"
    status = 409
    ack_code = 60_028


class OffsetForgotten(RequestError):
    """The message is stored, since so long that its offset is forgotten.

    Raised by the client library, where the answer is an ack without an offset.
    """

    err_code = "offset_forgotten"
    status = 409
    ack_code = 60_031


class SessionExpired(RequestError):
    """The session is not known: it is over since long, was pushed out by others, or never began."""

    err_code = "session_expired"
    status = 409
    ack_code = 60_029


class Unsupported(RequestError):
    """A request or option this version does not know."""

    err_code = "unsupported"
    ack_code = 60_008


class Unauthorized(RequestError):
    """Missing or wrong credentials."""

    err_code = "unauthorized"
    status = 401
    ack_code = 60_009


class TlsFailed(RequestError):
    """No TLS connection: a certificate is not trusted or missing, or one side does not speak TLS."""

    err_code = "tls_failed"
    ack_code = 60_020


# --- the moment's fault: back off, retry ----------------------------------------------------------


class UnavailableError(JetstreamError):
    """The same request may succeed later."""

    err_code = "unavailable"
    status = 503
    ack_code = 10_008
    retriable = True


class Overloaded(UnavailableError):
    """A mailbox or connection limit is reached; nothing was stored."""

    err_code = "overloaded"
    ack_code = 10_077


class DiskFull(UnavailableError):
    """The append was undone because the disk is full; nothing was stored."""

    err_code = "disk_full"
    ack_code = 10_047


class OutOfResources(DiskFull):
    """No descriptor or no memory to open a file with: undone as on a full disk, nothing was stored."""

    err_code = "out_of_resources"
    ack_code = 10_023


class SequenceGap(UnavailableError):
    """The message before this one in its session is not stored: it was lost, or refused itself.

    The same message can be stored once that one is; ``description`` says what the session's last one is.
    """

    err_code = "sequence_gap"
    status = 409
    ack_code = 60_027


class StreamOffline(UnavailableError):
    """The stream's log is closed or refused by this node; ``description`` says why."""

    err_code = "stream_offline"
    ack_code = 10_118


class SubscriptionRefused(UnavailableError):
    """NATS refuses to subscribe the stream's leader to its subject, for now; ``description`` says why."""

    err_code = "subscription_refused"
    ack_code = 60_055


class StreamLost(StreamOffline):
    """The log of the last replica in sync is gone from its disk; nothing is begun anew by itself."""

    err_code = "stream_lost"
    ack_code = 60_034


class NotLeader(UnavailableError):
    """Another node leads, named by ``leader`` if it is known; nothing was done."""

    err_code = "not_leader"
    ack_code = 60_021


class NotReplica(UnavailableError):
    """The node holds no replica of the stream; ``leader`` names who leads it, if anybody does."""

    err_code = "not_replica"
    ack_code = 60_022


class NotEnoughReplicas(UnavailableError):
    """Fewer replicas are in sync than ``min_insync_replicas``; nothing was stored."""

    err_code = "not_enough_replicas"
    ack_code = 60_023


class RemovalPending(UnavailableError):
    """A former replica of the stream, or the objects of a deleted one, are still to be removed first."""

    err_code = "removal_pending"
    ack_code = 60_024


class TierUnavailable(UnavailableError):
    """Offsets ``base`` to ``next`` are in the object store alone, and it does not give them now."""

    err_code = "tier_unavailable"
    ack_code = 60_032


class NoResponders(UnavailableError):
    """Nobody is subscribed: no stream binds the subject, or no node is there. Nothing was stored."""

    err_code = "no_responders"
    ack_code = 60_012


class DeadlinePassed(UnavailableError):
    """No answer in time: the outcome is unknown."""

    err_code = "deadline_passed"
    status = 504
    ack_code = 60_013


class ConnectionLost(UnavailableError):
    """The peer went away before it answered: the outcome is unknown."""

    err_code = "connection_lost"
    ack_code = 60_014


# --- the peer's, the medium's and the machine's fault ----------------------------------------------


class RemoteProtocolError(JetstreamError):
    """The peer broke the socket protocol; the connection is closed after this is said."""

    err_code = "protocol_error"
    status = 400
    ack_code = 60_015


class CorruptDataError(JetstreamError):
    """Stored bytes fail their checksum or frame; they are never served and never cut away."""

    err_code = "corrupt_data"
    ack_code = 60_016


class StorageError(JetstreamError):
    """The disk refused an operation."""

    err_code = "storage_error"
    ack_code = 60_017


class FsyncFailed(StorageError):
    """A sync failed: what is on disk is unknown, the log is closed, never retried (ATC'20 Rebello)."""

    err_code = "fsync_failed"
    ack_code = 60_018


# --- the peer's view is old: read the state again, then decide --------------------------------------


class Fenced(JetstreamError):
    """The request is based on an epoch or version that is no longer current; ``detail`` names it."""

    err_code = "fenced"
    status = 409
    ack_code = 60_019


class LimitReached(RequestError):
    """The cluster holds as many of these as it may."""

    err_code = "limit_reached"
    ack_code = 10_027


class UnknownNode(RequestError):
    """No node of that id is registered."""

    err_code = "node_not_found"
    status = 404
    ack_code = 60_010


class NodeInUse(RequestError):
    """The node takes part in the cluster and cannot be forgotten; ``description`` says what it does."""

    err_code = "node_in_use"
    status = 409
    ack_code = 60_025


class StreamHasLeader(RequestError):
    """The stream is led, or is about to be, by ``leader``, which is in sync: nobody else is elected."""

    err_code = "stream_has_leader"
    status = 409
    ack_code = 60_026


class ForeignReplica(RequestError):
    """A node registers a data directory that belongs to another node."""

    err_code = "foreign_replica"
    status = 409
    ack_code = 60_011
