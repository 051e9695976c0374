"""The bounded waiting room between a NATS connection and one stream's sequencer."""

from collections import deque

from envelope.limits import BATCH_BYTES_MAX, GROUP_MESSAGES_MAX
from jetstream.ingest.messages import BATCH_FIXED_BYTES, MessageBlock


class Mailbox:
    """Messages of one stream that wait to be sequenced, in arrival order.

    Attributes:
        waiting: how many messages.
        size_bytes: their bytes, as `MessageBlock.size_bytes` counts them.

    Invariants:
        B1: at most ``messages_max`` messages wait.
        B2: at most ``bytes_max`` bytes wait, or one message.
        B3: no message leaves a mailbox twice.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """Bound the mailbox."""
        assert messages_max > 0, "a mailbox has room for one message"
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._blocks: deque[MessageBlock] = deque()
        self.waiting = 0
        self.size_bytes = 0

    def offer(self, block: MessageBlock) -> MessageBlock | None:
        """Take in as many messages from the front of ``block`` as fit; return the others, to be refused.

        The mailbox owns ``block`` from now on.
        """
        refused: MessageBlock | None = None
        messages_room, bytes_room = self._messages_max - self.waiting, self._bytes_max - self.size_bytes
        if block.count > messages_room or block.size_bytes > bytes_room:
            room = min(messages_room, block.count_within(bytes_room))
            if room == 0 and not self.waiting:
                room = 1  # a message larger than the whole mailbox has to pass alone
            block, refused = block.split(room)
            if not refused.count:
                refused = None
        if block.count:
            self.waiting += block.count
            self.size_bytes += block.size_bytes
            last = self._blocks[-1] if self._blocks else None
            # Many small blocks become one that is drained whole.
            if (
                last is not None
                and last.count + block.count <= GROUP_MESSAGES_MAX
                and last.size_bytes + block.size_bytes <= BATCH_BYTES_MAX
            ):
                last.extend(block)
            else:
                self._blocks.append(block)
        assert self.waiting <= self._messages_max, f"B1: {self.waiting} messages"
        assert self.size_bytes <= self._bytes_max or self.waiting == 1, f"B2: {self.size_bytes} bytes"
        return refused

    def drain(self, messages_max: int, bytes_max: int) -> MessageBlock:
        """Take out messages from the front: at most ``messages_max``, at least one if any waits.

        This is where a batch gets its limit: what is drained together is appended together, and its encoded
        batch has at most ``bytes_max`` bytes, unless a single message is larger. The content of its
        envelopes is bounded likewise, so that a few small ones cannot fill the memory when they are opened.
        """
        assert messages_max > 0, "drain asks for something"
        blocks = self._blocks
        if not blocks:
            return MessageBlock()
        bytes_max -= BATCH_FIXED_BYTES
        taken = blocks.popleft()
        if taken.count > messages_max or taken.size_bytes > bytes_max:
            taken = self._front(taken, max(1, min(messages_max, taken.count_within(bytes_max))))
        while (
            blocks
            and taken.count + blocks[0].count <= messages_max
            and taken.size_bytes + blocks[0].size_bytes <= bytes_max
        ):
            taken.extend(blocks.popleft())
        if taken.cookies:
            taken = self._front(taken, taken.count_unpacked_within(bytes_max))
        self.waiting -= taken.count
        self.size_bytes -= taken.size_bytes
        assert self.waiting >= 0 <= self.size_bytes, f"B3: {taken.count} messages left {self.waiting}"
        return taken

    def _front(self, block: MessageBlock, count: int) -> MessageBlock:
        """Put back all of ``block`` but its first ``count`` messages; return these."""
        if count < block.count:
            block, rest = block.split(count)
            self._blocks.appendleft(rest)
        return block
