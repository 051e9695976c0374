"""Every limit, with its unit and the reason for its size; their relations are asserted at import.

At a limit the system pushes back or refuses; nothing grows without one.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

BATCH_BYTES_MAX: Final = 8 * MIB
"""Encoded batch; a single larger record goes alone (Akutan fetched 8 MiB at a time)."""

RECORD_BYTES_MAX: Final = 64 * MIB
"""Header and payload of one message; nats-server can be told to let larger ones through (``max_payload``)."""

SEGMENT_BYTES_DEFAULT: Final = 256 * MIB
SEGMENT_BYTES_MIN: Final = 64 * KIB

MAILBOX_MESSAGES_MAX: Final = 262_144
"""Messages waiting in one stream's mailbox; beyond it the stream refuses."""

MAILBOX_BYTES_MAX: Final = 64 * MIB
"""Bytes waiting in one stream's mailbox; beyond it the stream refuses."""

GROUP_MESSAGES_MAX: Final = 16_384
"""Messages sequenced into one append, so that one group never stalls the event loop for long."""

DEDUPE_IDS_MAX: Final = 500_000
"""Message ids and places in sessions remembered by one stream, if its configuration does not say otherwise;
the effective window is visible in its info."""

MESSAGE_ID_BYTES_MAX: Final = 1024
SESSIONS_MAX: Final = 10_000
"""Publisher sessions of one stream, some hundred bytes each: all of them are in one note on the disk, and in
one message to a replica that begins anew."""

SESSION_ID_BYTES_MAX: Final = 128
ENVELOPE_HEADER_BYTES_MAX: Final = 64 * KIB
"""Header of one envelope: as much as a block of NATS headers."""

ACK_INBOX_BYTES_MAX: Final = 512
"""Subject to answer on, named in an envelope: far below the control line that every server takes."""

CORRELATION_ID_BYTES_MAX: Final = 256
"""Echoed in an answer."""

ENVELOPE_RECORDS_MAX: Final = 65_536
"""Records of one batch envelope: a group has four times `GROUP_MESSAGES_MAX` at most through one."""

STREAM_NAME_CHARS_MAX: Final = 255
CURSOR_METADATA_BYTES_MAX: Final = 1024
"""Text that a consumer stores beside its offset; the leader has all cursors in memory."""

CURSOR_INCARNATION_CHARS_MAX: Final = 64
CURSOR_RECORD_BYTES_MAX: Final = 16 * KIB
"""A cursor as it is published, with its headers: the text may be escaped sixfold in JSON."""

CONTROL_LINE_BYTES_MAX: Final = 4096
"""nats-server's default ``max_control_line``: a longer one costs the connection."""

CONTROL_LINE_BYTES_MIN: Final = 1024
"""Smallest ``max_control_line`` of a server that nodes work with: answers fit it, and subscriptions."""

SUBJECT_BYTES_MAX: Final = CONTROL_LINE_BYTES_MAX
"""No record has a longer one."""

SUBSCRIPTION_BYTES_MAX: Final = CONTROL_LINE_BYTES_MAX - STREAM_NAME_CHARS_MAX - 32
"""Subject of a stream: a subscription names it in one line with a queue group and a number."""

STREAMS_MAX: Final = 100_000

API_REQUEST_BYTES_MAX: Final = 1 * MIB
FRAME_HEADER_BYTES_MAX: Final = 64 * KIB
"""Header (JSON) of one request or response on the socket protocol."""

REQUEST_BODY_BYTES_MAX: Final = 0
"""Requests of protocol version 1 carry no body."""

REQUESTS_IN_FLIGHT_MAX: Final = 256
"""Unanswered requests on one socket connection."""

FETCH_BYTES_DEFAULT: Final = 1 * MIB
FETCH_BYTES_MAX: Final = 64 * MIB

SELECTED_BYTES_MAX: Final = 4 * MIB
"""Looked at by one fetch that leaves something out: its body is in memory until the reader takes it."""

RESPONSE_BODY_BYTES_MAX: Final = FETCH_BYTES_MAX + 2 * RECORD_BYTES_MAX
"""What a client makes room for: the largest batch goes alone, and Arrow's headers column may double it."""

FETCH_WAIT_MS_MAX: Final = 60_000
CONNECTIONS_MAX: Final = 10_000

GROUP_MEMBERS_MAX: Final = 1_000
"""Members of one consumer group: more of them than partitions only wait."""

MEMBER_STREAMS_MAX: Final = 256
"""Streams that one member of a group subscribes to."""

MEMBER_CLAIMS_MAX: Final = 10_000
"""Partitions that a member says it has when it joins."""

MEMBER_WORD_BYTES_MAX: Final = 128
"""Id, instance id, client id, node or rack of a member."""

GROUP_NAMES_BYTES_MAX: Final = 1 * MIB
"""All such words and names of streams of all members of a group: they are written with every change of it."""

GROUP_RECORD_BYTES_MAX: Final = BATCH_BYTES_MAX
"""A group's state as one record: its names, which JSON may double, and 10,000 partitions of some 40 bytes."""

RESET_CURSORS_MAX: Final = 10_000
"""Cursors of a group that one request sets, all or none, as far as they fit one NATS message."""

GROUP_GONE_MAX: Final = 1_000
"""Clients that have left a group and are remembered, so that their late requests are known as such."""

GROUPS_MAX: Final = 10_000
"""Groups of one shard, those without members included; their coordinators are in one node's memory."""

GROUP_CURSORS_MAX: Final = 20_000
"""Cursors of one group: twice as many as a member may say it has, so that streams can come and go."""

SHARD_CURSORS_MAX: Final = 500_000
"""Cursors of all groups of one shard, some 300 bytes each (and the metadata) in its leader's memory."""

GROUP_WAITING_MAX: Final = 4_096
"""Requests of one group that wait, or whose write is under way: a few for each of its members."""

SESSION_TIMEOUT_MS_MIN: Final = 1_000
"""Room for several heartbeats, and for the failover of the coordinator's log between two of them."""

SESSION_TIMEOUT_MS_MAX: Final = 1_800_000
"""Half an hour, as with Kafka: so long may partitions wait for a member that has died."""

REBALANCE_TIMEOUT_MS_MAX: Final = SESSION_TIMEOUT_MS_MAX


def reply_bytes_max(max_control_line: int) -> int:
    """Return how long a subject may be so that the line that publishes on it fits the server's limit."""
    return max_control_line - len(f" {RECORD_BYTES_MAX}")


assert reply_bytes_max(CONTROL_LINE_BYTES_MIN) >= ACK_INBOX_BYTES_MAX, "an answer fits the line"
assert BATCH_BYTES_MAX <= MAILBOX_BYTES_MAX, "a full batch must fit the mailbox"
assert BATCH_BYTES_MAX <= FETCH_BYTES_MAX, "a fetch must be able to return one batch"
assert 4 * GROUP_NAMES_BYTES_MAX <= GROUP_RECORD_BYTES_MAX, "a group's state must fit one record with room"
assert GROUP_MEMBERS_MAX <= GROUP_WAITING_MAX, "all members of a group may ask at once"
assert GROUP_CURSORS_MAX <= SHARD_CURSORS_MAX, "a group with all its cursors fits its shard"
assert GROUP_MESSAGES_MAX <= MAILBOX_MESSAGES_MAX, "a group is drained from the mailbox"
assert 6 * CURSOR_METADATA_BYTES_MAX < CURSOR_RECORD_BYTES_MAX, "a cursor fits, however it is written"
