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
    """Root of all errors; a subclass is declared with its own values of the class attributes."""

    err_code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    ack_code: ClassVar[int] = 60_000
    retriable: ClassVar[bool] = False

    def __init__(self, description: str, /, **detail: int | str) -> None:
        """Keep ``description`` for people and ``detail`` (the numbers a client needs) for machines."""
        super().__init__(description)
        self.description = description
        self.detail = detail

    def __init_subclass__(
        cls,
        *,
        err_code: str | None = None,
        status: int | None = None,
        ack_code: int | None = None,
        retriable: bool | None = None,
    ) -> None:
        """Register the class; two classes with one ``err_code`` or ``ack_code`` are a bug found at import.

        A class that names no ``status`` or ``retriable`` has that of its base.
        """
        if status is not None:
            cls.status = status
        if retriable is not None:
            cls.retriable = retriable
        if err_code is None and "err_code" not in vars(cls):
            return
        if err_code is None or ack_code is None:
            raise TypeError(f"{cls.__name__} names no ack_code of its own beside its err_code")
        cls.err_code, cls.ack_code = err_code, ack_code
        for other in _REGISTRY.values():
            if err_code == other.err_code or ack_code == other.ack_code:
                raise TypeError(f"{err_code!r}, {ack_code}: taken by {other.__name__}")
        _REGISTRY[err_code] = cls


def registry() -> dict[str, type[JetstreamError]]:
    """Return a copy of all registered classes by ``err_code``."""
    return dict(_REGISTRY)


def error_from_wire(err_code: str, description: str, detail: dict[str, int | str]) -> JetstreamError:
    """Rebuild the error a peer reported; an unknown code becomes the root class."""
    return _REGISTRY.get(err_code, InternalError)(description, **detail)


class InternalError(JetstreamError, err_code="internal", ack_code=60_000):
    """A fault of ours, reported instead of hidden."""


# --- the caller's fault: tell, do not retry -------------------------------------------------------


class RequestError(JetstreamError, err_code="bad_request", status=400, ack_code=10_003):
    """The request can never succeed as it is."""


class InvalidName(RequestError, err_code="invalid_name", ack_code=60_001):
    """A stream or consumer name outside the grammar."""


class InvalidSubject(RequestError, err_code="invalid_subject", ack_code=60_002):
    """A subject or pattern that NATS would not accept, or that we must not bind."""


class InvalidConfig(RequestError, err_code="invalid_config", ack_code=10_052):
    """A stream configuration whose parts contradict each other or a limit."""


class UnknownStream(RequestError, err_code="stream_not_found", status=404, ack_code=10_059):
    """No stream of that name."""


class StreamExists(RequestError, err_code="stream_exists", ack_code=10_058):
    """The name is taken by a stream with another configuration."""


class OffsetOutOfRange(RequestError, err_code="offset_out_of_range", status=416, ack_code=60_003):
    """The offset is below the log start or beyond the log end; ``detail`` names both."""


class DivergedHistory(RequestError, err_code="diverged_history", status=409, ack_code=60_004):
    """The reader's last epoch does not fit the log: what it read was never committed here (KIP-320)."""


class StreamRecreated(RequestError, err_code="stream_recreated", status=409, ack_code=60_005):
    """The stream was deleted and created again: the caller's offsets belong to its former life."""


class OffsetsApart(RequestError, err_code="offsets_apart", status=409, ack_code=60_085):
    """The offsets of a mirror's source and target would differ by another number; nothing more is copied.

    Others have published to the target, or the source has lost single records by compaction.
    """


class OriginDiffers(RequestError, err_code="origin_differs", status=409, ack_code=60_086):
    """The target is a mirror of another stream than the source, or of an earlier life of it."""


class UnknownBackup(RequestError, err_code="unknown_backup", status=404, ack_code=60_091):
    """There is no such backup at that place."""


class DirectoryInUse(RequestError, err_code="directory_in_use", status=409, ack_code=60_092):
    """A backup is restored into an empty directory, and this one holds files; nothing was changed."""


class SourceTruncated(RequestError, err_code="source_truncated", status=410, ack_code=60_087):
    """The source of a mirror lacks records that were to be copied next, or that the target has of it."""


class UnknownRecord(RequestError, err_code="record_not_found", status=404, ack_code=60_098):
    """There is no value at that offset: the record was removed, or is a tombstone."""


class UnknownPath(RequestError, err_code="path_not_found", status=404, ack_code=60_099):
    """The HTTP port has nothing at that path."""


class NotAcceptable(RequestError, err_code="not_acceptable", status=406, ack_code=60_093):
    """The request accepts none of the formats that there are."""


class WrongHost(RequestError, err_code="wrong_host", status=421, ack_code=60_094):
    """A request without a credential names a host that is not this node; a web page may have sent it."""


class RecordTooLarge(RequestError, err_code="record_too_large", ack_code=10_054):
    """The message exceeds the stream's or the system's limit."""


class InvalidHeader(RequestError, err_code="invalid_header", ack_code=60_006):
    """A header of ours with a value outside its grammar."""


class InvalidEnvelope(RequestError, err_code="invalid_envelope", ack_code=60_030):
    """An envelope whose checksum fits and whose header or payload is not what the format says."""


class InvalidCursor(RequestError, err_code="invalid_cursor", ack_code=60_033):
    """A message published as a consumer's cursor is none, or has a name or key that no cursor can have."""


class StreamReadOnly(RequestError, err_code="stream_read_only", ack_code=10_109):
    """The stream is ``read_only``: it takes no messages until that is switched off; nothing was stored.

    NATS's own number is that of its sealed streams, which never take messages again.
    """


class WrongExpectedStream(RequestError, err_code="wrong_expected_stream", ack_code=10_060):
    """``Nats-Expected-Stream`` names a stream that is not bound to the subject."""


class WrongLastSequence(RequestError, err_code="wrong_last_sequence", ack_code=10_071):
    """``Nats-Expected-Last-Sequence`` differs from the stream's last sequence."""


class WrongLastMessageId(RequestError, err_code="wrong_last_msg_id", ack_code=10_070):
    """``Nats-Expected-Last-Msg-Id`` differs from the id of the stream's last record."""


class TxidDecreasing(RequestError, err_code="txid_decreasing", ack_code=60_007):
    """``Jetstream-Txid`` is below the stream's last one."""


class TxidTooFar(RequestError, err_code="txid_too_far", ack_code=60_056):
    """``Jetstream-Txid`` is more than ``txid_max_step`` above the stream's last one."""


class SequencePassed(RequestError, err_code="sequence_passed", status=409, ack_code=60_028):
    """A later message of the session is stored, and it is not known whether this one ever was.

    It was stored so long ago that it is forgotten, or it was lost or refused and left behind: its session has
    left out numbers, or has messages that do not name the one before them.
    """


class OffsetForgotten(RequestError, err_code="offset_forgotten", status=409, ack_code=60_031):
    """The message is stored, since so long that its offset is forgotten.

    Raised by the client library, where the answer is an ack without an offset.
    """


class SessionExpired(RequestError, err_code="session_expired", status=409, ack_code=60_029):
    """The session is not known: it is over since long, was pushed out by others, or never began."""


class Unsupported(RequestError, err_code="unsupported", ack_code=60_008):
    """A request or option this version does not know."""


class Unauthorized(RequestError, err_code="unauthorized", status=401, ack_code=60_009):
    """Missing or wrong credentials, or a right that NATS does not give."""


class Forbidden(RequestError, err_code="forbidden", status=403, ack_code=60_058):
    """Outside of what the reader's tickets allow."""


class TlsFailed(RequestError, err_code="tls_failed", ack_code=60_020):
    """No TLS connection: a certificate is not trusted or missing, or one side does not speak TLS."""


# --- the moment's fault: back off, retry ----------------------------------------------------------


class UnavailableError(JetstreamError, err_code="unavailable", status=503, ack_code=10_008, retriable=True):
    """The same request may succeed later."""


class InvalidTicket(UnavailableError, err_code="invalid_ticket", status=401, ack_code=60_059):
    """A ticket has run out, or no key that is known here has signed it: with a new one it may go on."""


class Overloaded(UnavailableError, err_code="overloaded", ack_code=10_077):
    """A mailbox or connection limit is reached; nothing was stored."""


class DiskFull(UnavailableError, err_code="disk_full", ack_code=10_047):
    """The append was undone because the disk is full; nothing was stored."""


class OutOfResources(DiskFull, err_code="out_of_resources", ack_code=10_023):
    """No descriptor or no memory to open a file with: undone as on a full disk, nothing was stored."""


class SequenceGap(UnavailableError, err_code="sequence_gap", status=409, ack_code=60_027):
    """The message before this one in its session is not stored: it was lost, or refused itself.

    The same message can be stored once that one is; ``description`` says what the session's last one is.
    """


class StreamOffline(UnavailableError, err_code="stream_offline", ack_code=10_118):
    """The stream's log is closed or refused by this node; ``description`` says why."""


class SubscriptionRefused(UnavailableError, err_code="subscription_refused", ack_code=60_055):
    """NATS refuses to subscribe the stream's leader to its subject, for now; ``description`` says why."""


class StreamLost(StreamOffline, err_code="stream_lost", ack_code=60_034):
    """The log of the last replica in sync is gone from its disk; nothing is begun anew by itself."""


class NotLeader(UnavailableError, err_code="not_leader", ack_code=60_021):
    """Another node leads, named by ``leader`` if it is known; nothing was done."""


class NotReplica(UnavailableError, err_code="not_replica", ack_code=60_022):
    """The node holds no replica of the stream; ``leader`` names who leads it, if anybody does."""


class NotEnoughReplicas(UnavailableError, err_code="not_enough_replicas", ack_code=60_023):
    """Fewer replicas are in sync than ``min_insync_replicas``; nothing was stored."""


class RemovalPending(UnavailableError, err_code="removal_pending", ack_code=60_024):
    """A former replica of the stream, or the objects of a deleted one, are still to be removed first."""


class TierUnavailable(UnavailableError, err_code="tier_unavailable", ack_code=60_032):
    """Offsets ``base`` to ``next`` are in the object store alone, and it does not give them now."""


class NoResponders(UnavailableError, err_code="no_responders", ack_code=60_012):
    """Nobody is subscribed: no stream binds the subject, or no node is there. Nothing was stored."""


class DeadlinePassed(UnavailableError, err_code="deadline_passed", status=504, ack_code=60_013):
    """No answer in time: the outcome is unknown."""


class ConnectionLost(UnavailableError, err_code="connection_lost", ack_code=60_014):
    """The peer went away before it answered: the outcome is unknown."""


# --- the peer's, the medium's and the machine's fault ----------------------------------------------


class RemoteProtocolError(JetstreamError, err_code="protocol_error", status=400, ack_code=60_015):
    """The peer broke the socket protocol; the connection is closed after this is said."""


class CorruptDataError(JetstreamError, err_code="corrupt_data", ack_code=60_016):
    """Stored bytes fail their checksum or frame; they are never served and never cut away."""


class DamagedBackup(CorruptDataError, err_code="damaged_backup", ack_code=60_090):
    """An object of a backup is missing, or has other bytes than were written; nothing is restored from it."""


class StorageError(JetstreamError, err_code="storage_error", ack_code=60_017):
    """The disk refused an operation."""


class FsyncFailed(StorageError, err_code="fsync_failed", ack_code=60_018):
    """A sync failed: what is on disk is unknown, the log is closed, never retried (ATC'20 Rebello)."""


# --- the peer's view is old: read the state again, then decide --------------------------------------


class Fenced(JetstreamError, err_code="fenced", status=409, ack_code=60_019):
    """The request is based on an epoch or version that is no longer current; ``detail`` names it."""


class LimitReached(RequestError, err_code="limit_reached", ack_code=10_027):
    """The cluster holds as many of these as it may."""


class RequestCancelled(RequestError, err_code="cancelled", status=499, ack_code=60_057):
    """The reader took the request back, which changes nothing."""


class UnknownNode(RequestError, err_code="node_not_found", status=404, ack_code=60_010):
    """No node of that id is registered."""


class NodeInUse(RequestError, err_code="node_in_use", status=409, ack_code=60_025):
    """The node takes part in the cluster and cannot be forgotten; ``description`` says what it does."""


class ReassignmentUnderWay(RequestError, err_code="reassignment_under_way", status=409, ack_code=60_080):
    """The stream is being moved; it can have another number of replicas once that is over, or cancelled."""


class FeatureLevelTooLow(RequestError, err_code="feature_level_too_low", status=409, ack_code=60_095):
    """The cluster is at ``feature_level``, and this needs ``needed``: older nodes would not understand it."""


class NodesTooOld(RequestError, err_code="nodes_too_old", status=409, ack_code=60_096):
    """The feature level is not raised: ``nodes`` cannot do as much, or have not said that they can."""


class UnsupportedFeatureLevel(
    RequestError, err_code="unsupported_feature_level", status=409, ack_code=60_097
):
    """The cluster is at a higher feature level than the node can (``supported``): it stops; upgrade it."""


class StreamHasLeader(RequestError, err_code="stream_has_leader", status=409, ack_code=60_026):
    """The stream is led, or is about to be, by ``leader``, which is in sync: nobody else is elected."""


class ForeignReplica(RequestError, err_code="foreign_replica", status=409, ack_code=60_011):
    """A node registers a data directory that belongs to another node."""
