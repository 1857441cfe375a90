"""The authentication of a connection that is under way."""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.auth.authentication_provider import AuthenticationState
from pybroker.wire import pulsar_api_pb2 as pb


@dataclass(eq=False, slots=True)
class PendingAuthentication:
    """The authentication of a CONNECT command, or of renewed credentials if `request` is None.

    Invariant: at most one step runs. While none runs, the broker waits for AUTH_RESPONSE.
    """

    method: str
    state: AuthenticationState
    request: pb.CommandConnect | None
    is_step_running: bool = False
    is_repeated: bool = False
    """The client answered the first challenge with credentials that have expired."""
