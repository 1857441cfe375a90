"""Jute, the encoding of ZooKeeper: big-endian integers, and texts, byte strings and lists with a length in front.

A length of -1 is an absent value; it reads as empty.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error

from pybroker.zookeeper.errors import DamagedAnswer

_INT = Struct(">i")
_LONG = Struct(">q")
pack_int = _INT.pack
pack_long = _LONG.pack


def pack_buffer(value: bytes) -> bytes:
    return pack_int(len(value)) + value


def pack_text(text: str) -> bytes:
    return pack_buffer(text.encode())


def pack_texts(texts: list[str]) -> bytes:
    return pack_int(len(texts)) + b"".join(map(pack_text, texts))


class Reader:
    """Reads values from one message in order. Raises DamagedAnswer if the message is too short."""

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self.position = position

    @property
    def at_end(self) -> bool:
        return self.position >= len(self._data)

    def unpack(self, layout: Struct) -> tuple[int, ...]:
        try:
            values: tuple[int, ...] = layout.unpack_from(self._data, self.position)
        except struct_error as error:
            raise DamagedAnswer(f"a response of ZooKeeper ends too early: it has {len(self._data)} bytes") from error
        self.position += layout.size
        return values

    def integer(self) -> int:
        return self.unpack(_INT)[0]

    def long(self) -> int:
        return self.unpack(_LONG)[0]

    def boolean(self) -> bool:
        if self.at_end:
            raise DamagedAnswer(f"a response of ZooKeeper ends too early: it has {len(self._data)} bytes")
        self.position += 1
        return self._data[self.position - 1] != 0

    def buffer(self) -> bytes:
        size = self.integer()
        if size <= 0:
            return b""
        end = self.position + size
        if end > len(self._data):
            raise DamagedAnswer(
                f"a response of ZooKeeper is damaged: it has {len(self._data)} bytes, but contains a value of "
                f"{size} bytes"
            )
        value = self._data[self.position : end]
        self.position = end
        return value

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise DamagedAnswer(f"a response of ZooKeeper contains a text that is not UTF-8: {error}") from error

    def texts(self) -> list[str]:
        count = self.integer()
        if count * 4 > len(self._data) - self.position:
            raise DamagedAnswer(
                f"a response of ZooKeeper is damaged: it has {len(self._data)} bytes, but contains a list of "
                f"{count} texts"
            )
        return [self.text() for _ in range(count)]
