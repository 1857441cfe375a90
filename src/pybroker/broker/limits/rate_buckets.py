"""Token buckets for messages and bytes. Pure; times are monotonic milliseconds.

A message may overdraw a bucket. Then no message passes until the debt is refilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from pybroker.waiting.token_bucket import TokenBucket


class RateBuckets:
    """Token buckets for messages, bytes, or both, refilled in each period."""

    __slots__ = ("_buckets", "_bytes", "_messages")

    def __init__(self, messages: int, size_bytes: int, period_ms: int, now_ms: float) -> None:
        """`messages`, `size_bytes`: tokens per period; 0 or less for no limit."""
        self._messages = TokenBucket(messages, period_ms, now_ms) if messages > 0 else None
        self._bytes = TokenBucket(size_bytes, period_ms, now_ms) if size_bytes > 0 else None
        self._buckets = [bucket for bucket in (self._messages, self._bytes) if bucket is not None]
        assert self._buckets, "a rate limit needs a limit of messages or bytes"

    def allowance(self, now_ms: float) -> tuple[float, float]:
        """Return how many messages and bytes may pass now; infinity without a limit."""
        messages = inf if self._messages is None else self._messages.available(now_ms)
        return messages, inf if self._bytes is None else self._bytes.available(now_ms)

    def passing(self, message_counts: Sequence[int], payloads: Sequence[bytes], size_bytes: int, now_ms: float) -> int:
        """Return how many of the entries may pass now, without consuming tokens (`spend`). The last of these entries may
        overdraw a bucket. `size_bytes`: total size of `payloads`.
        """
        messages_left, bytes_left = self.allowance(now_ms)
        if sum(message_counts) <= messages_left and size_bytes <= bytes_left:
            return len(payloads)
        for index, message_count in enumerate(message_counts):
            if messages_left <= 0 or bytes_left <= 0:
                return index
            messages_left -= message_count
            bytes_left -= len(payloads[index])
        return len(payloads)

    def spend(self, messages: int, size_bytes: int) -> None:
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def add(self, messages: int, size_bytes: int) -> None:
        """Add tokens to the buckets, even beyond the tokens of one period. Tokens beyond one period that are not consumed
        before the next call expire.
        """
        if self._messages is not None:
            self._messages.add(messages)
        if self._bytes is not None:
            self._bytes.add(size_bytes)

    def wait_ms(self) -> int:
        """Return the milliseconds from the last call of `allowance` or `passing` until a message may pass."""
        return max(bucket.wait_ms() for bucket in self._buckets)
