"""Payloads as their producers meant them: decrypted, decompressed, within bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from pybroker.columns.bad_records import CannotDecrypt
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload, decompress

if TYPE_CHECKING:
    from pybroker.columns.encryption import Decryptor

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""The protocol's default bound of one entry."""


@dataclass(frozen=True)
class DecoderLimits:
    """How large things may become; each has an option of the same name in the Spark source."""

    max_batch_bytes: int = 4 * 1024 * 1024
    """A RecordBatch is closed at so many bytes of the fields asked for, or earlier; a single larger message passes."""
    max_batch_rows: int = 10_000
    max_uncompressed_bytes: int = 16 * MAX_MESSAGE_BYTES
    """Of an entry; one that claims more is a bad record."""
    max_chunked_message_bytes: int = 256 * 1024 * 1024
    """Of a message in chunks, as it was sent and uncompressed; a larger one is a bad record."""
    max_chunk_span_entries: int = 100_000
    """From the first to the last chunk of a message, entries of others between them counted; a message that is more spread out
    counts as never completed."""
    max_chunk_span_bytes: int = 1024 * 1024 * 1024
    max_held_chunk_bytes: int = 64 * 1024 * 1024
    """Of chunks that wait for the last one of their message; more are read again when it comes."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(f"{each.name} must be at least 1")


class Opener:
    """Opens payloads; one for each decoder, as it remembers data keys."""

    def __init__(self, limits: DecoderLimits, decryptor: Decryptor | None = None) -> None:
        self._limits = limits
        self._decryptor = decryptor

    def decrypted(self, metadata: bytes, payload: bytes) -> bytes:
        """The payload of an encrypted entry before encryption. Raises CannotDecrypt."""
        if self._decryptor is None:
            raise CannotDecrypt("it is encrypted and no private key was given")
        return self._decryptor.decrypt(metadata, payload)

    def uncompressed(self, compression: int, payload: bytes, claimed_bytes: int) -> bytes:
        """The payload of an entry before compression. Raises DamagedPayload."""
        return self._opened(
            compression, payload, claimed_bytes, self._limits.max_uncompressed_bytes, "maxUncompressedBytes"
        )

    def uncompressed_chunked(self, compression: int, payload: bytes, claimed_bytes: int) -> bytes:
        """The payload of a whole message of chunks before compression. Raises DamagedPayload."""
        limit = self._limits.max_chunked_message_bytes
        return self._opened(compression, payload, claimed_bytes, limit, "maxChunkedMessageBytes")

    def _opened(self, compression: int, payload: bytes, claimed_bytes: int, limit_bytes: int, option: str) -> bytes:
        if compression == pb.NONE:
            return payload
        if claimed_bytes > limit_bytes:
            raise DamagedPayload(
                f"{claimed_bytes} bytes before compression are over the limit of {limit_bytes} ({option})"
            )
        return decompress(cast("pb.CompressionType", compression), payload, claimed_bytes)
