"""Audit records of refused accesses: requests with wrong credentials, or of a role without the permission.

Operation: each refusal is one record `access.refused` of the logger `pybroker.audit`, with the role, the role of a Pulsar
proxy, the address, the operation and its object. Above `maxClientEventsLoggedPerMinute` records per minute for a client
(address and role) and cause, refusals are counted; one record with the count follows after a minute.

Limitations: at most 20 records with a count per minute. The last one has the refusals of all further clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pybroker.auth.proxied_role import Principal, ProxiedRole, client_role
from pybroker.errors import AuthenticationError, AuthorizationError
from pybroker.runtime import logs
from pybroker.runtime.repeated_events import INTERVAL_S, ClientId, RepeatedEvents

if TYPE_CHECKING:
    from pybroker.runtime.runtime import Runtime

NO_ROLE = "-"
SEVERAL = "several"
"""Operation of a record that stands for several refusals."""


class Interface(StrEnum):
    """The way by which a request reached the broker."""

    BINARY = "binary"
    HTTP = "http"


class Cause(StrEnum):
    """The reason for which an access was refused."""

    AUTHENTICATION = "authentication"
    """Missing, wrong or expired credentials."""
    AUTHORIZATION = "authorization"
    """The role lacks the permission."""


@dataclass(frozen=True, slots=True)
class RefusedAccess:
    """One refused request."""

    interface: Interface
    cause: Cause
    principal: Principal
    """None for a client that is not authenticated."""
    host: str
    """The client's address without the port."""
    operation: str
    """The command, or the HTTP method."""
    target: str
    """The topic, or the path; empty if the request names none."""
    result: str
    """The error code, or the HTTP status."""
    reason: str


def cause_of(failure: BaseException | None) -> Cause | None:
    """Return why `failure` refuses an access; None if it does not. Some errors hide a missing permission from the
    client. They count as refused accesses, because their `__cause__` is an AuthorizationError.
    """
    if isinstance(failure, AuthenticationError):
        return Cause.AUTHENTICATION
    if isinstance(failure, AuthorizationError):
        return Cause.AUTHORIZATION
    return None if failure is None else cause_of(failure.__cause__)


class RefusedAccesses:
    """The refused accesses of one broker."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._events = RepeatedEvents(runtime.config.max_client_events_logged_per_minute)
        self._is_interval_running = False
        self._totals = runtime.stats.refused_accesses
        self._totals |= {(interface, cause): 0 for interface in Interface for cause in Cause}

    def record(self, access: RefusedAccess) -> None:
        self._totals[access.interface, access.cause] += 1
        if not self._is_interval_running:
            self._is_interval_running = True
            self._runtime.call_later(INTERVAL_S, self._end_interval)
        role = client_role(access.principal)
        client = ClientId(access.host, NO_ROLE if role is None else role)
        if not self._events.add(client, access.cause):
            return
        fields: dict[str, object] = {"role": client.role}
        if isinstance(access.principal, ProxiedRole):
            fields["proxy_role"] = access.principal.proxy_role
        fields |= {"address": access.host, "interface": access.interface, "operation": access.operation}
        if access.target:
            fields["target"] = access.target
        fields |= {"result": access.result, "cause": access.cause, "reason": access.reason}
        logs.audit("access.refused", **fields, count=1)

    def flush(self) -> None:
        """Write the records with a count, for refusals above the limit of single records. Called a minute after the
        first refusal, and before the broker stops.
        """
        for summary in self._events.end_interval():
            for cause, count in summary.unlogged.items():
                logs.audit(
                    "access.refused",
                    role=summary.client.role,
                    address=summary.client.host,
                    operation=SEVERAL,
                    cause=cause,
                    count=count,
                )

    def _end_interval(self) -> None:
        self._is_interval_running = False
        self.flush()
