"""Texts of authorization errors, exactly Pulsar's, because clients compare the whole text.

The cause of the error states the missing right, for the broker's log (`client.refused`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.errors import AuthorizationError


@contextmanager
def refused_to(what: str, client: str = "Client") -> Iterator[None]:
    """Within this context, an authorization error names the operation `what`."""
    try:
        yield
    except AuthorizationError as error:
        raise AuthorizationError(f"{client} is not authorized to {what}") from error
