"""Decryption and decompression of payloads within limits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from pybroker.encryption.encryption_errors import CannotDecrypt
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload, decompress

if TYPE_CHECKING:
    from pybroker.encryption.payload_encryption import Decryptor

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""Pulsar's default maximum size of an entry."""


@dataclass(frozen=True)
class DecoderLimits:
    """Limits of the decoder. The Spark source has an option with the name of each limit."""

    max_batch_bytes: int = 4 * 1024 * 1024
    """Maximum bytes of the requested fields in one RecordBatch. A larger single message is allowed."""
    max_batch_rows: int = 10_000
    max_uncompressed_bytes: int = 16 * MAX_MESSAGE_BYTES
    """Maximum size of one decompressed entry. An entry that claims a larger size is a bad record."""
    max_chunked_message_bytes: int = 256 * 1024 * 1024
    """Maximum of a chunked message, compressed and uncompressed; a larger one is a bad record."""
    max_chunk_span_entries: int = 100_000
    """Maximum number of entries from the first to the last chunk of a message, including other entries. A message
    with a larger span is never completed.
    """
    max_chunk_span_bytes: int = 1024 * 1024 * 1024
    max_held_chunk_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of incomplete chunked messages in memory. Further chunks are read again when the last chunk
    arrives.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(
                    f"DecoderLimits cannot be created: {each.name} is {getattr(self, each.name)}, but must be at least 1"
                )


class Opener:
    """Decrypts and decompresses the payloads of one decoder, and caches data keys."""

    def __init__(self, limits: DecoderLimits, decryptor: Decryptor | None = None) -> None:
        self._limits = limits
        self._decryptor = decryptor

    def decrypted(self, metadata: bytes, payload: bytes) -> bytes:
        if self._decryptor is None:
            raise CannotDecrypt(
                "the message is encrypted, and this reader has no private key: configure the private keys"
            )
        return self._decryptor.decrypt(metadata, payload)

    def uncompressed(self, compression: int, payload: bytes, claimed_bytes: int) -> bytes:
        return self._opened(
            compression, payload, claimed_bytes, self._limits.max_uncompressed_bytes, "maxUncompressedBytes"
        )

    def uncompressed_chunked(self, compression: int, payload: bytes, claimed_bytes: int) -> bytes:
        limit = self._limits.max_chunked_message_bytes
        return self._opened(compression, payload, claimed_bytes, limit, "maxChunkedMessageBytes")

    def _opened(self, compression: int, payload: bytes, claimed_bytes: int, limit_bytes: int, option: str) -> bytes:
        if compression == pb.NONE:
            return payload
        if claimed_bytes > limit_bytes:
            raise DamagedPayload(
                f"the payload of the message has {claimed_bytes} bytes after decompression according to its metadata, but "
                f"{option} is {limit_bytes}: increase {option}"
            )
        return decompress(cast("pb.CompressionType", compression), payload, claimed_bytes)
