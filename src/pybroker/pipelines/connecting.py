"""The interface by which a pipeline gets the broker's address and credentials from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pybroker.client.access import Access


class Connect(Protocol):
    """A function that returns address and credentials of the broker that the command line selects."""

    def __call__(self, topics: Sequence[str], settings: Mapping[str, str] | None = None) -> Access:
        """Return the access with the address of the binary protocol, which a lookup of the first topic determines.

        `settings`: connection values of a settings file, by profile keys. They rank like a profile: options override them, and
        they override the environment. Without a topic the address may be empty. Raises the errors that end a command.
        """
