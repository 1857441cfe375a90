"""How a refused right is worded to clients: in Pulsar's words first, which applications and their tests look for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.errors import AuthorizationError


@contextmanager
def refused_to(what: str) -> Iterator[None]:
    """A right that is refused within this was needed to do `what`, as Pulsar calls it."""
    try:
        yield
    except AuthorizationError as error:
        raise AuthorizationError(f"Client is not authorized to {what}: {error}") from error
