"""REST calls to other brokers of the cluster, with the credentials of the settings `brokerClient*`."""

from __future__ import annotations

import asyncio
import http.client
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pybroker.client.access import AccessRefused
from pybroker.client.failures import ClientError
from pybroker.client.rest import Refused, RestClient, reason_of
from pybroker.cluster.broker_client_access import broker_client_access
from pybroker.errors import AdminError, ServiceNotReady

if TYPE_CHECKING:
    from pybroker.broker.context.presence import Presence
    from pybroker.cluster.broker_registry import RegisteredBroker
    from pybroker.config import BrokerConfig

CALLS_AT_ONCE = 16
"""Maximum number of concurrent calls. Each call uses a connection and a thread."""
PATIENCE_S = 5.0
"""Time for which a call is retried while the other broker is busy."""


class OtherBrokers:
    """REST client for the other brokers of the cluster."""

    def __init__(self, config: BrokerConfig, presence: Presence) -> None:
        self._config = config
        self._presence = presence
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def call(self, base_url: str, method: str, path: str, body: object = None) -> Any:
        """Call the broker at `base_url` and follow redirects. Return the decoded JSON response; None if it is empty.

        Raises AdminError with the status and reason of an error response, and ServiceNotReady if the broker does not
        respond.
        """
        async with self._slots:
            return await asyncio.to_thread(self._call, base_url, method, path, body)

    async def unload(self, bundle: str, owner: RegisteredBroker, destination: RegisteredBroker) -> None:
        """Request that `owner` unloads `bundle` and that `destination` acquires it. Raises AdminError,
        ServiceNotReady.
        """
        namespace, _, bounds = bundle.rpartition("/")
        query = urlencode({"destinationBroker": destination.broker_id})
        base_url = owner.web_service_url or owner.web_service_url_tls
        await self.call(base_url, "PUT", f"/admin/v2/namespaces/{namespace}/{bounds}/unload?{query}")

    def _call(self, base_url: str, method: str, path: str, body: object) -> Any:
        client: RestClient | None = None
        try:
            own = broker_client_access(self._config, self._presence.addresses.resolve(None))
            client = RestClient(replace(own, admin_url=base_url), PATIENCE_S)
            return client.json(method, path, body, may_repeat=method != "POST")
        except Refused as error:
            raise AdminError(error.status, error.reason or str(error)) from error
        except (ClientError, AccessRefused, OSError, http.client.HTTPException) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ServiceNotReady(f"broker {base_url} did not respond: {reason}; try again") from error
        finally:
            if client is not None:
                client.close()
