"""Texts of authorization errors. They are exactly Pulsar's, because clients compare them.

The exception's cause contains the missing permission; the broker logs it with `client.refused`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.errors import AuthorizationError


@contextmanager
def refused_to(what: str, client: str = "Client") -> Iterator[None]:
    """Replace the text of an AuthorizationError that is raised within this context with Pulsar's text: `{client} is not
    authorized to {what}`.
    """
    try:
        yield
    except AuthorizationError as error:
        raise AuthorizationError(f"{client} is not authorized to {what}") from error
