"""REST calls to other brokers of the cluster, with the credentials of the settings `brokerClient*`."""

from __future__ import annotations

import asyncio
import http.client
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from pybroker.client.access import AccessRefused
from pybroker.client.client_tls import tls_context
from pybroker.client.failures import ClientError
from pybroker.client.rest import Refused, RestClient, reason_of
from pybroker.cluster.broker_client_access import broker_client_access
from pybroker.cluster.ownership.namespace_bundle import topic_in
from pybroker.errors import AdminError, ServiceNotReady

if TYPE_CHECKING:
    from pybroker.broker.context.presence import Presence
    from pybroker.cluster.broker_registry import RegisteredBroker
    from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
    from pybroker.config import BrokerConfig

CALLS_AT_ONCE = 16
"""Maximum number of concurrent calls. Each call uses a connection and a thread."""
_VERSION = "/admin/v2/brokers/version"
PATIENCE_S = 5.0
"""Time for which a call is retried while the other broker is busy."""


class OtherBrokers:
    """REST client for the other brokers of the cluster."""

    def __init__(self, config: BrokerConfig, presence: Presence) -> None:
        self._config = config
        self._presence = presence
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def call(
        self, base_url: str, method: str, path: str, body: object = None, *, patience_s: float = PATIENCE_S
    ) -> Any:
        """Call the broker at `base_url` and follow redirects. Return the decoded JSON response; None if it is empty.

        `patience_s`: seconds for retries. Raises AdminError with the status and reason of an error response, and
        ServiceNotReady if the broker does not respond.
        """
        async with self._slots:
            return await asyncio.to_thread(self._call, base_url, method, path, body, patience_s)

    async def is_answering(self, base_url: str, deadline_s: float) -> bool:
        """Return whether the broker at `base_url` responds to an HTTP request within `deadline_s` seconds."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self._answers(urlsplit(base_url))
        except (OSError, ClientError, AccessRefused, TimeoutError):
            return False

    async def _answers(self, url: SplitResult) -> bool:
        context = None
        if url.scheme == "https":
            access = broker_client_access(self._config, self._presence.addresses.resolve(None))
            context = await asyncio.to_thread(tls_context, access)
        reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=context)
        try:
            writer.write(f"GET {_VERSION} HTTP/1.1\r\nhost: {url.netloc}\r\nconnection: close\r\n\r\n".encode())
            return (await reader.read(1)) != b""
        finally:
            writer.close()

    async def look_up(
        self, base_url: str, bundle: NamespaceBundle, *, is_authoritative: bool, patience_s: float = PATIENCE_S
    ) -> None:
        """Look up a topic of `bundle` at a broker, which then acquires the bundle or forwards the lookup. Java brokers
        support this too.

        `is_authoritative`: the broker itself acquires a bundle without an owner. `patience_s`: seconds for retries.
        Raises AdminError and ServiceNotReady.
        """
        name = topic_in(bundle)
        if name is None:
            raise ServiceNotReady(
                f"bundle {bundle} cannot be looked up: the lookup needs a topic name with a hash in the range of the "
                "bundle, and the broker found none"
            )
        authoritative = "true" if is_authoritative else "false"
        path = f"/lookup/v2/topic/{name.domain}/{name.namespace}/{quote(name.local_name, safe='')}"
        await self.call(base_url, "GET", f"{path}?authoritative={authoritative}", patience_s=patience_s)

    async def unload(self, bundle: str, owner: RegisteredBroker, destination: RegisteredBroker) -> None:
        """Make `owner` unload `bundle`, and `destination` acquire it. Raises AdminError, ServiceNotReady."""
        namespace, _, bounds = bundle.rpartition("/")
        query = urlencode({"destinationBroker": destination.broker_id})
        base_url = owner.web_service_url or owner.web_service_url_tls
        await self.call(base_url, "PUT", f"/admin/v2/namespaces/{namespace}/{bounds}/unload?{query}")

    async def split(self, bundle: str, owner: RegisteredBroker, *, unload: bool) -> None:
        """Make `owner` split `bundle`, and unload the parts if `unload`. Raises AdminError, ServiceNotReady."""
        namespace, _, bounds = bundle.rpartition("/")
        base_url = owner.web_service_url or owner.web_service_url_tls
        path = f"/admin/v2/namespaces/{namespace}/{bounds}/split?unload={'true' if unload else 'false'}"
        await self.call(base_url, "PUT", path)

    def _call(self, base_url: str, method: str, path: str, body: object, patience_s: float) -> Any:
        client: RestClient | None = None
        try:
            own = broker_client_access(self._config, self._presence.addresses.resolve(None))
            client = RestClient(replace(own, admin_url=base_url), patience_s)
            return client.json(method, path, body, may_repeat=method != "POST")
        except Refused as error:
            raise AdminError(error.status, error.reason or str(error)) from error
        except (ClientError, AccessRefused, OSError, http.client.HTTPException) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ServiceNotReady(f"broker {base_url} did not respond: {reason}; try again") from error
        finally:
            if client is not None:
                client.close()
