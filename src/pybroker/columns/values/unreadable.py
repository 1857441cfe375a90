"""The one refusal of a whole schema: it cannot become columns."""

from __future__ import annotations


class UnreadableSchema(ValueError):
    """The topic's schema cannot become columns; the text says why. Its payloads can be read as bytes all the same."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. Read the payloads as bytes instead: valueMode=raw")
