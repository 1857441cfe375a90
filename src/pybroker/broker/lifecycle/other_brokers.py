"""REST calls to the other brokers of the cluster, with the credentials of `brokerClient*`."""

from __future__ import annotations

import asyncio
import http.client
from typing import TYPE_CHECKING, Any

from pybroker.client.access import access_by_parameters
from pybroker.client.failures import ClientError
from pybroker.client.rest import Refused, RestClient, reason_of
from pybroker.errors import AdminError, ServiceNotReady

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

CALLS_AT_ONCE = 16
"""Each has a connection and a thread."""
PATIENCE_S = 5.0
"""How long a call is repeated while the other broker is busy."""


class OtherBrokers:
    """Owned by the broker service of a cluster."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def call(self, base_url: str, method: str, path: str, body: object = None) -> Any:
        """Return the JSON answer of the broker at `base_url`, or of the one that it redirects to; None for an empty one.

        Raises AdminError with the status and reason of a refusal, and ServiceNotReady if the broker does not answer.
        """
        async with self._slots:
            return await asyncio.to_thread(self._call, base_url, method, path, body)

    def _call(self, base_url: str, method: str, path: str, body: object) -> Any:
        config = self._config
        access = access_by_parameters(
            "",
            base_url,
            config.broker_client_authentication_parameters,
            None,
        )
        client: RestClient | None = None
        try:
            client = RestClient(access, PATIENCE_S)
            return client.json(method, path, body, may_repeat=method != "POST")
        except Refused as error:
            raise AdminError(error.status, error.reason or str(error)) from error
        except (ClientError, ValueError, OSError, http.client.HTTPException) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ServiceNotReady(f"broker {base_url} did not answer: {reason}; try again") from error
        finally:
            if client is not None:
                client.close()
