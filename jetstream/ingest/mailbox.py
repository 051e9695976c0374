"""The bounded waiting room between a NATS connection and one stream's sequencer."""

from collections import deque

from envelope.limits import BATCH_BYTES_MAX, GROUP_MESSAGES_MAX
from jetstream.ingest.messages import BATCH_FIXED_BYTES, MessageBlock


class Mailbox:
    """Messages of one stream that wait to be sequenced, in arrival order.

    Invariants:
        B1: at most ``messages_max`` messages wait.
        B2: at most ``bytes_max`` bytes wait, or one message.
        B3: no message leaves a mailbox twice.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """Bound the mailbox; bytes are counted as `MessageBlock.size_bytes` does."""
        assert messages_max > 0, "a mailbox has room for one message"
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._blocks: deque[MessageBlock] = deque()
        self._count = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes that wait."""
        return self._size_bytes

    def offer(self, block: MessageBlock) -> MessageBlock | None:
        """Take in as many messages from the front of ``block`` as fit; return the others, to be refused.

        The mailbox owns ``block`` from now on.
        """
        room = min(self._messages_max - self._count, block.count_within(self._bytes_max - self._size_bytes))
        if room == 0 and self._count == 0:
            room = 1  # a message larger than the whole mailbox has to pass alone
        refused: MessageBlock | None = None
        if room < len(block):
            block, refused = block.split(room)
        if len(block):
            self._put(block)
        assert self._count <= self._messages_max, f"B1: {self._count} messages"
        assert self._size_bytes <= self._bytes_max or self._count == 1, f"B2: {self._size_bytes} bytes"
        return refused

    def _put(self, block: MessageBlock) -> None:
        self._count += len(block)
        self._size_bytes += block.size_bytes
        last = self._blocks[-1] if self._blocks else None
        # Many small blocks become one that is drained whole.
        if (
            last is not None
            and len(last) + len(block) <= GROUP_MESSAGES_MAX
            and last.size_bytes + block.size_bytes <= BATCH_BYTES_MAX
        ):
            last.extend(block)
        else:
            self._blocks.append(block)

    def drain(self, messages_max: int, bytes_max: int) -> MessageBlock:
        """Take out messages from the front: at most ``messages_max``, at least one if any waits.

        This is where a batch gets its limit: what is drained together is appended together, and its encoded
        batch has at most ``bytes_max`` bytes, unless a single message is larger. The content of its
        envelopes is bounded likewise, so that a few small ones cannot fill the memory when they are opened.
        """
        assert messages_max > 0, "drain asks for something"
        if not self._blocks:
            return MessageBlock()
        bytes_max -= BATCH_FIXED_BYTES
        taken = self._blocks.popleft()
        fitting = max(1, min(messages_max, taken.count_within(bytes_max)))
        if fitting < len(taken):
            taken, rest = taken.split(fitting)
            self._blocks.appendleft(rest)
        else:
            self._add_whole_blocks(taken, messages_max, bytes_max)
        if (fitting := taken.count_unpacked_within(bytes_max)) < len(taken):
            taken, rest = taken.split(fitting)
            self._blocks.appendleft(rest)
        self._count -= len(taken)
        self._size_bytes -= taken.size_bytes
        assert self._count >= 0 <= self._size_bytes, f"B3: {len(taken)} messages left {self._count}"
        return taken

    def _add_whole_blocks(self, taken: MessageBlock, messages_max: int, bytes_max: int) -> None:
        while self._blocks:
            following = self._blocks[0]
            fits = taken.size_bytes + following.size_bytes <= bytes_max
            if not fits or len(taken) + len(following) > messages_max:
                return
            taken.extend(self._blocks.popleft())
