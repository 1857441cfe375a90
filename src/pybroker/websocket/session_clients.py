"""The clients with which sessions use topics: they connect to the brokers of the cluster with the session's credentials.

A session whose credentials cannot be passed on, such as a TLS certificate, uses the credentials of the broker's own client
(`brokerClientAuthenticationParameters`). Its permissions are checked when the session is opened.

Sessions with equal credentials share `webSocketConnectionsPerBroker` clients, each with one connection per broker. A client
is closed with its last session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pybroker.auth import provider_names
from pybroker.client.access import Access, Secret
from pybroker.client.client import Client
from pybroker.cluster.broker_client_access import broker_client_access

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService

OPERATION_TIMEOUT_S = 8.0
"""Shorter than the time for which WebSocket clients commonly wait for a handshake (10 s), so that they get the reason."""


@dataclass(slots=True, eq=False)
class _Shared:
    client: Client
    sessions: int = 0


class SessionClients:
    """The clients of all sessions."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker
        self._clients: dict[Access, list[_Shared]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def access(self, method: str, data: bytes, original_principal: str = "") -> Access:
        """Return the broker address and the credentials for a session whose client has authenticated with `method`
        (`none` if anonymous) and `data`. `original_principal`: the role of the client, if the credentials are those of
        a proxy.

        Raises AccessRefused if the configuration of the broker's own client cannot be used.
        """
        own = replace(
            broker_client_access(self._broker.runtime.config, self._broker.presence.addresses.resolve(None)),
            operation_timeout_s=OPERATION_TIMEOUT_S,
        )
        if not self._broker.authentication.enabled:
            return own
        bare = Access(
            own.service_url,
            tls_trust_certs_file=own.tls_trust_certs_file,
            tls_allow_insecure=own.tls_allow_insecure,
            tls_verify_hostname=own.tls_verify_hostname,
            listener_name=own.listener_name,
            original_principal=original_principal,
            operation_timeout_s=OPERATION_TIMEOUT_S,
        )
        if method == provider_names.TOKEN:
            return replace(bare, token=Secret(text=data.decode("utf-8", "replace")))
        if method == provider_names.BASIC:
            user, _, password = data.decode("utf-8", "replace").partition(":")
            return replace(bare, basic_user=user, basic_password=Secret(text=password))
        return bare if method == provider_names.NONE else own

    def borrow(self, access: Access) -> Client:
        """Return a client for one session, which must return the client with `give_back`."""
        shared = self._clients.setdefault(access, [])
        least = min(shared, key=lambda each: each.sessions, default=None)
        most = self._broker.runtime.config.web_socket_connections_per_broker
        if least is None or (least.sessions and len(shared) < most):
            least = _Shared(Client(access))
            shared.append(least)
        least.sessions += 1
        return least.client

    async def give_back(self, client: Client) -> None:
        shared = self._clients[client.access]
        found = next(each for each in shared if each.client is client)
        found.sessions -= 1
        if not found.sessions:
            shared.remove(found)
            if not shared:
                del self._clients[client.access]
            await client.close()

    async def close(self) -> None:
        clients = [each.client for shared in self._clients.values() for each in shared]
        for client in clients:
            await client.close()
