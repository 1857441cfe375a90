"""The choice between an embedded broker and a real broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.testing.broker import TestBroker

URL_VARIABLE = "PULSAR_URL"
ADMIN_URL_VARIABLE = "PULSAR_ADMIN_URL"


def open_broker(
    directory: str | Path | None = None,
    *,
    url: str | None = None,
    admin_url: str | None = None,
    **settings: object,
) -> TestBroker:
    """Return a broker for tests, which the caller closes: the real broker at `url`, or else at the address in the
    environment variables `PULSAR_URL` and `PULSAR_ADMIN_URL`, or else an embedded one. `directory` and `settings` apply
    to an embedded broker only.
    """
    if url is None:
        url, admin_url = os.environ.get(URL_VARIABLE), os.environ.get(ADMIN_URL_VARIABLE)
    if url:
        from pybroker.testing.remote import RemoteTestBroker  # noqa: PLC0415  (one of both is loaded)

        return RemoteTestBroker(url, admin_url)
    from pybroker.testing.broker import EmbeddedTestBroker  # noqa: PLC0415

    return EmbeddedTestBroker(directory, **settings)
