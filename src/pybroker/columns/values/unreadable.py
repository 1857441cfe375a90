"""The error for a schema that cannot become columns."""

from __future__ import annotations


class UnreadableSchema(ValueError):
    """The topic's schema cannot be represented as columns. Its payloads can still be read as bytes."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. Read the payloads as bytes instead: valueMode=raw")
