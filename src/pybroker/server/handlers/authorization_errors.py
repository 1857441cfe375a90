"""The texts of authorization errors, which are exactly those of Pulsar, because clients and their tests compare the
whole text.

The cause of the error states the missing right, and the broker's log (`client.refused`) contains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.errors import AuthorizationError


@contextmanager
def refused_to(what: str, client: str = "Client") -> Iterator[None]:
    """Within this context, an authorization error names the operation `what`, as in Pulsar."""
    try:
        yield
    except AuthorizationError as error:
        raise AuthorizationError(f"{client} is not authorized to {what}") from error
