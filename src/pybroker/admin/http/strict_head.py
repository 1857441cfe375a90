"""Parsing of HTTP requests without leniency that would let two parsers read different requests (request smuggling).

Invariants: a head with a line that does not end in CR LF, with a folded header, or with both a length and a transfer coding, is
refused; so is a body of chunks so small that reading them costs many times their bytes.
"""

from __future__ import annotations

import re

import h11
from h11._receivebuffer import ReceiveBuffer

FREE_CHUNKS = 256
SMALLEST_CHUNK_BYTES = 64
"""The minimum average chunk size with its framing, beyond the first `FREE_CHUNKS`."""
_BARE_LF = re.compile(rb"(?<!\r)\n")
_END = b"\r\n\r\n"


class StrictBuffer(ReceiveBuffer):
    """Replaces h11's own buffer in a connection. Raises RemoteProtocolError, which h11 passes on."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks = 0
        self._chunk_bytes = 0

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines of a head, or of the trailers behind a body in chunks; None while the end is missing."""
        if self._data[:2] == b"\r\n":
            self._extract(2)
            return []
        searched = self._multiple_lines_search
        end = self._data.find(_END, max(0, searched - len(_END) + 1))
        stop = len(self._data) if end < 0 else end + len(_END)
        if _BARE_LF.search(self._data, max(0, searched - 1), stop):
            raise h11.RemoteProtocolError("a line ends without CR")
        if end < 0:
            self._multiple_lines_search = len(self._data)
            return None
        lines = self._extract(stop)[: -len(_END)].split(b"\r\n")
        self._chunks = self._chunk_bytes = 0
        names = set()
        for line in lines[1:]:
            if line.startswith((b" ", b"\t")):
                raise h11.RemoteProtocolError("a header is folded")
            names.add(bytes(line.partition(b":")[0]).strip().lower())
        if {b"content-length", b"transfer-encoding"} <= names:
            raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """The line in front of a chunk."""
        line = super().maybe_extract_next_line()
        if line is not None:
            self._chunks += 1
            self._chunk_bytes += len(line)
            if self._chunks > FREE_CHUNKS and self._chunk_bytes < self._chunks * SMALLEST_CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return line

    def maybe_extract_at_most(self, count: int) -> bytearray | None:
        """Bytes of a body."""
        data = super().maybe_extract_at_most(count)
        if data is not None:
            self._chunk_bytes += len(data)
        return data
