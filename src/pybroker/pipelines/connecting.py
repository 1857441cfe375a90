"""The interface by which a pipeline gets the broker's address and credentials from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pybroker.client.access import Access


class Connect(Protocol):
    """A function that returns address and credentials of the broker that the command line selects."""

    def __call__(self, topics: Sequence[str], settings: Mapping[str, str] | None = None) -> Access:
        """Return address and credentials. The address of the binary protocol comes from a lookup of the first topic;
        without a topic it may be empty.

        `settings` are connection values of a settings file: command line options override them, and they override the
        environment. Raises the errors that end a command.
        """
