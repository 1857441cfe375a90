"""Compression of frames with the extension permessage-deflate (RFC 7692).

Each message is compressed by itself (no context takeover), so an idle session keeps no compression state. A message above
`webSocketMaxTextFrameSize` after decompression closes its session, and no larger buffer is created.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from websockets.extensions.permessage_deflate import PerMessageDeflate, ServerPerMessageDeflateFactory

if TYPE_CHECKING:
    from websockets.extensions import Extension
    from websockets.frames import Frame

WINDOW_BITS = 12
_SETTINGS = {"memLevel": 5, "level": 3}
LEAST_BYTES = 256
"""Shorter texts are sent uncompressed, because compression would take longer than it saves."""
PIECE_BYTES = 1024
"""Compressed bytes that are parsed at once. After each piece, the connection may stop reading."""

OFFER = ServerPerMessageDeflateFactory(
    server_no_context_takeover=True, client_no_context_takeover=True, server_max_window_bits=WINDOW_BITS
)


class FrameCompression(PerMessageDeflate):
    """The extension of one session. Short messages are sent uncompressed."""

    def encode(self, frame: Frame) -> Frame:
        return frame if len(frame.data) < LEAST_BYTES else super().encode(frame)


def session_extensions(negotiated: Sequence[Extension]) -> list[Extension]:
    """Convert the extensions that a handshake has negotiated to the extensions of the session: permessage-deflate
    becomes a FrameCompression with the negotiated parameters.
    """
    return [
        FrameCompression(
            each.remote_no_context_takeover,
            each.local_no_context_takeover,
            each.remote_max_window_bits,
            each.local_max_window_bits,
            _SETTINGS,
        )
        for each in negotiated
        if isinstance(each, PerMessageDeflate)
    ]
