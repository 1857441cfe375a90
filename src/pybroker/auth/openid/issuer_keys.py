"""The keys of one identity provider: fetched when a token needs them, kept, and replaced.

Operation: the first token of the issuer waits for its keys; all waiting tokens share one fetch. Keys older than
`refresh_s` are fetched again in the background, and keys older than `expiry_s` are not used. An unknown key id fetches
the keys again if they are older than `unknown_key_s`, because any client can send tokens with invented key ids. After a
failed fetch, the next one starts FAILURE_PAUSE_S later at the earliest; until then the issuer's tokens are refused
immediately if there are no keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pybroker.auth.openid.json_download import DownloadFailed
from pybroker.auth.openid.key_set import IssuerKey, UnusableKeySet, read_key_set
from pybroker.errors import AuthenticationError, TooManyRequests
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

FAILURE_PAUSE_S = 5.0
LOG_PERIOD_S = 60.0
"""Failures in a row are logged at most once in this time."""
MAX_WAITERS = 1000
"""Maximum number of tokens that wait for one fetch."""
DISCOVERY_PATH = "/.well-known/openid-configuration"
Download = Callable[[str], Awaitable[dict[str, object]]]


class KeyTimes(NamedTuple):
    """Ages of keys in seconds."""

    refresh_s: float
    expiry_s: float
    unknown_key_s: float


class IssuerKeys:
    """The keys of one issuer."""

    def __init__(
        self,
        issuer: str,
        times: KeyTimes,
        url_problem: Callable[[str], str],
        download: Download,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self.issuer = issuer
        self._times = times
        self._url_problem = url_problem
        self._download = download
        self._clock = clock
        self._tasks = tasks
        self._keys: dict[str, IssuerKey] = {}
        self._fetched_s = 0.0
        self._failed_s: float | None = None
        self._logged_s: float | None = None
        self._fetch: asyncio.Event | None = None
        """Set at the end of the fetch that is under way."""
        self._waiters = 0

    async def key(self, key_id: str) -> IssuerKey:
        """Return the key with this id; fetch the keys if needed. Raises AuthenticationError if the issuer has no such
        key or its keys cannot be fetched, and TooManyRequests if too many tokens wait for keys.
        """
        age_s = self._now_s() - self._fetched_s
        if not self._keys or age_s >= self._times.expiry_s:
            self._keys = {}
            await self._fetch_and_wait()
        elif key_id not in self._keys and age_s >= self._times.unknown_key_s:
            await self._fetch_and_wait()
        elif age_s >= self._times.refresh_s:
            self._start_fetch()
        found = self._keys.get(key_id)
        if found is not None:
            return found
        if self._keys:
            raise AuthenticationError(
                "the identity provider has no key with the key id (kid) of the token", "ERROR_RETRIEVING_PUBLIC_KEY"
            )
        raise AuthenticationError(
            "the keys of the identity provider cannot be fetched at the moment; see issuer_keys.fetch_failed in the "
            "broker's log",
            "ERROR_RETRIEVING_PUBLIC_KEY",
        )

    def forget(self) -> None:
        """Drop the keys to free capacity for other issuers. The next token fetches them again."""
        self._keys = {}

    async def _fetch_and_wait(self) -> None:
        fetch = self._start_fetch()
        if fetch is None:
            return
        if self._waiters >= MAX_WAITERS:
            raise TooManyRequests("too many tokens wait for the keys of their identity provider; try again later")
        self._waiters += 1
        try:
            await fetch.wait()
        finally:
            self._waiters -= 1

    def _start_fetch(self) -> asyncio.Event | None:
        """Start a fetch unless one is under way. Return None if the last one failed a moment ago."""
        if self._fetch is not None:
            return self._fetch
        if self._failed_s is not None and self._now_s() - self._failed_s < FAILURE_PAUSE_S:
            return None
        self._fetch = asyncio.Event()
        self._tasks.start(self._run(self._fetch), "issuer keys")
        return self._fetch

    async def _run(self, ended: asyncio.Event) -> None:
        begun_s = self._failed_s = self._now_s()
        try:
            self._keys = await self._fetched()
            self._fetched_s = self._now_s()
            self._failed_s = self._logged_s = None
            took_ms = round(1000 * (self._fetched_s - begun_s))
            logs.info("issuer_keys.fetched", issuer=self.issuer, keys=len(self._keys), took_ms=took_ms)
        except (DownloadFailed, UnusableKeySet) as error:
            self._failed_s = now_s = self._now_s()
            if self._logged_s is None or now_s - self._logged_s >= LOG_PERIOD_S:
                self._logged_s = now_s
                logs.warning("issuer_keys.fetch_failed", issuer=self.issuer, error=str(error), keys=len(self._keys))
        finally:
            self._fetch = None
            ended.set()

    async def _fetched(self) -> dict[str, IssuerKey]:
        discovery_url = self.issuer.rstrip("/") + DISCOVERY_PATH
        document = await self._download(discovery_url)
        if document.get("issuer") != self.issuer:
            raise DownloadFailed(
                f"{discovery_url}: the member 'issuer' of this document is {str(document.get('issuer'))[:200]!r}, but must be "
                f"{self.issuer!r}, the value in openIDAllowedTokenIssuers"
            )
        keys_url = document.get("jwks_uri")
        problem = self._url_problem(keys_url) if isinstance(keys_url, str) else "is missing"
        if problem or not isinstance(keys_url, str):
            raise DownloadFailed(f"{discovery_url}: the address of the keys (jwks_uri) {problem}")
        return read_key_set(await self._download(keys_url))

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000
