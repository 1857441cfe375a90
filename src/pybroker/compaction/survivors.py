"""The remaining messages of a compaction: the last one of each key, unless it deletes the key.

Two passes over the same entries in the same order: `note` records the messages, `kept` returns the remainder of each
entry.

Memory: about 200 bytes for each key with a value (a key of more than 32 bytes is stored as a digest) and for each
chunked message.
"""

from __future__ import annotations

from hashlib import blake2b

from pybroker.compaction.messages import Batch, Marker, Message, Single, Whole, read_entry, with_messages
from pybroker.model.position import Position

MAX_KEY_BYTES = 32
KEY_BYTES = 200
CHUNKED_BYTES = 200
"""The memory for a key, or for a chunked message."""
_DIGEST_MARK = b"#"


class Survivors:
    """The remaining messages of one compaction.

    Invariant: `_last` has the last recorded message of each key with a value.
    """

    def __init__(self, *, keeps_messages_without_key: bool) -> None:
        self._keeps_messages_without_key = keeps_messages_without_key
        self._last: dict[bytes, int] = {}
        self._last_chunks: dict[
            bytes, int | None
        ] = {}  # by the message's uuid, shortened; None until the last chunk was read
        self.removed_messages = 0

    @property
    def key_count(self) -> int:
        return len(self._last)

    @property
    def size_bytes(self) -> int:
        return KEY_BYTES * len(self._last) + CHUNKED_BYTES * len(self._last_chunks)

    # --- the first pass ----------------------------------------------------------------------------------------------

    def note(self, position: Position, entry: bytes) -> None:
        content = read_entry(entry)
        if isinstance(content, Batch):
            for index, message in enumerate(content.messages):
                if not message.is_removed:
                    self._note(message.key, _number(position, index), is_tombstone=message.is_tombstone)
        elif isinstance(content, Single):
            self._note_single(content, _number(position, 0))

    def _note_single(self, single: Single, number: int) -> None:
        if not single.chunk_uuid:
            self._note(single.key, number, is_tombstone=single.is_tombstone)
        elif single.is_last_chunk:
            self._last_chunks[_short(single.chunk_uuid)] = number
            self._note(single.key, number, is_tombstone=single.is_tombstone)
        else:
            self._last_chunks.setdefault(_short(single.chunk_uuid), None)

    def _note(self, key: bytes | None, number: int, *, is_tombstone: bool) -> None:
        if key is None:
            self.removed_messages += not self._keeps_messages_without_key
            return
        short = _short(key)
        if is_tombstone:
            self._last.pop(short, None)
            self.removed_messages += 1
            return
        self.removed_messages += short in self._last
        self._last[short] = number

    # --- the second pass ---------------------------------------------------------------------------------------------

    def kept(self, position: Position, entry: bytes) -> bytes | None:
        """Return the entry without messages that compaction removes; the entry itself if all stay, None if none stays."""
        content = read_entry(entry)
        if isinstance(content, Whole):
            return entry
        if isinstance(content, Marker):
            return None
        if isinstance(content, Single):
            return entry if self._keeps_single(content, _number(position, 0)) else None
        kept = [
            self._keeps_of_batch(message, _number(position, index)) for index, message in enumerate(content.messages)
        ]
        if not any(kept):
            return None
        if all(keep or message.is_removed for keep, message in zip(kept, content.messages, strict=True)):
            return entry
        return with_messages(entry, content, kept)

    def _keeps_of_batch(self, message: Message, number: int) -> bool:
        return not message.is_removed and self._keeps(message.key, number)

    def _keeps_single(self, single: Single, number: int) -> bool:
        if not single.chunk_uuid or single.key is None:
            return self._keeps(single.key, number)
        # A chunk stays with its message, which has the position of its last chunk, perhaps after the compacted range.
        last = self._last_chunks.get(_short(single.chunk_uuid))
        return last is None or self._keeps(single.key, last)

    def _keeps(self, key: bytes | None, number: int) -> bool:
        return self._keeps_messages_without_key if key is None else self._last.get(_short(key)) == number


def _number(position: Position, index: int) -> int:
    """Return position and index as one number, which takes less memory than a tuple of three."""
    return (position.ledger_id << 64) | (position.entry_id << 32) | index


def _short(key: bytes) -> bytes:
    return key if len(key) <= MAX_KEY_BYTES else _DIGEST_MARK + blake2b(key, digest_size=MAX_KEY_BYTES).digest()
