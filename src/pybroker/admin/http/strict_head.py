"""Strict parsing of HTTP requests, to prevent request smuggling.

Rejects ambiguous heads, and bodies in very small chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import h11

FREE_CHUNKS = 256
SMALLEST_CHUNK_BYTES = 64
"""Minimum average chunk size including framing, beyond the first `FREE_CHUNKS`."""
_BARE_LF = re.compile(rb"(?<!\r)\n")
_END = b"\r\n\r\n"


class StrictConnection(h11.Connection):
    """h11 connection that also checks line ends, which h11 does not report. After a violation, `next_event` always
    raises RemoteProtocolError.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._violation = ""
        self._searched_bytes = 0  # of the incomplete head
        self._is_chunked = False
        self._chunks = 0
        self._chunk_bytes = 0
        self._framing = b""  # chunk framing since the last data

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        if self._violation:
            raise h11.RemoteProtocolError(self._violation)
        if self._is_chunked and self.their_state is h11.SEND_BODY:
            return self._next_of_chunks()
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._searched_bytes = self._chunks = self._chunk_bytes = 0
            self._framing = b""
            self._is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        return event

    def _check_head(self) -> None:
        data, _ = self.trailing_data
        end = data.find(_END, max(0, self._searched_bytes - len(_END) + 1))
        stop = len(data) if end < 0 else end + len(_END)
        if _BARE_LF.search(data, max(0, self._searched_bytes - 1), stop):
            self._refuse("a line ends without CR")
        if end < 0:
            self._searched_bytes = len(data)
        else:
            self._check_headers(data[:end].split(b"\r\n")[1:])

    def _check_headers(self, lines: Iterable[bytes]) -> None:
        names = set()
        for line in lines:
            if line.startswith((b" ", b"\t")):
                self._refuse("a header is folded")
            names.add(line.partition(b":")[0].strip().lower())
        if {b"content-length", b"transfer-encoding"} <= names:
            self._refuse("both Content-Length and Transfer-Encoding")

    def _next_of_chunks(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        before, _ = self.trailing_data
        event = super().next_event()
        after, _ = self.trailing_data
        self._framing += before[: len(before) - len(after)]
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_end  # h11 sets no `chunk_start` if data arrives after the size
            self._chunk_bytes += len(self._framing)
            self._framing = b""
            if self._chunks > FREE_CHUNKS and self._chunk_bytes < self._chunks * SMALLEST_CHUNK_BYTES:
                self._refuse("the chunks of the body are too small")
        elif isinstance(event, h11.EndOfMessage):
            # The last chunk and the trailers, which h11 parses like headers.
            if _BARE_LF.search(self._framing):
                self._refuse("a line ends without CR")
            self._check_headers(self._framing.split(b"\r\n"))
        return event

    def _refuse(self, violation: str) -> None:
        self._violation = violation
        raise h11.RemoteProtocolError(violation)
