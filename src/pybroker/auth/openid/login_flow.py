"""Login of a user in the browser: the authorization code flow of OpenID Connect with PKCE (RFC 7636).

Operation: `begin` returns the address of the identity provider to which the browser is sent, and what the broker must
know when the browser comes back with a code. `complete` exchanges the code for the user's ID token.

Limitations: the caller verifies the signature and the claims of the ID token as of any other token; this module checks
its nonce. At most MAX_REQUESTS requests to the identity provider run at a time.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from urllib.parse import quote, urlencode

from pybroker.auth import token_claims
from pybroker.auth.locations import decoded_base64, read_location
from pybroker.auth.openid.issuer_keys import DISCOVERY_PATH
from pybroker.auth.openid.json_download import (
    DownloadFailed,
    DownloadLimits,
    download_json,
    post_form,
    url_problem,
)
from pybroker.auth.openid.openid_provider import tls_context
from pybroker.auth.openid.pending_login import PendingLogin
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import AuthenticationError, TooManyRequests
from pybroker.runtime.clock import Clock

MAX_REQUESTS = 16
DOCUMENT_AGE_S = 600.0
"""Age from which the discovery document is fetched again."""
MAX_CODE_CHARACTERS = 4096


class LoginFlow:
    """The logins of one broker at the identity provider `consoleOpenIDIssuer`. The constructor raises ConfigError."""

    def __init__(self, config: BrokerConfig, clock: Clock, random: Random) -> None:
        """`random` must be suitable for secrets."""
        self._issuer = config.console_open_id_issuer
        self._client_id = config.console_open_id_client_id
        secret = config.console_open_id_client_secret
        self._secret = read_location("consoleOpenIDClientSecret", secret).decode().strip() if secret else ""
        self._scope = config.console_open_id_scope
        self._requires_https = config.open_id_require_issuers_use_https
        self._limits = DownloadLimits(
            config.open_id_http_connection_timeout_millis / 1000, config.open_id_http_read_timeout_millis / 1000
        )
        self._tls = tls_context(config)
        self._clock = clock
        self._random = random
        self._document: dict[str, object] = {}
        self._fetched_s = 0.0
        self._requests = 0
        self._fetching = asyncio.Lock()

    async def begin(self, redirect_uri: str) -> tuple[str, PendingLogin]:
        """Return the address at the identity provider to which the browser must go, and the pending login for
        `complete`. Raises AuthenticationError if the identity provider cannot be reached or its discovery document is
        unusable, and TooManyRequests if too many logins wait for it.
        """
        with self._request():
            endpoint = await self._endpoint("authorization_endpoint")
        state, nonce, verifier = (self._random.randbytes(32).hex() for _ in range(3))
        pending = PendingLogin(state, nonce, verifier, redirect_uri)
        digest = hashlib.sha256(pending.verifier.encode()).digest()
        fields = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scope,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(fields)}", pending

    async def complete(self, pending: PendingLogin, code: str) -> bytes:
        """Exchange the authorization code that the browser brought back, and return the ID token. The caller must verify
        its signature. Raises AuthenticationError if the identity provider cannot be reached, refuses the code, or sends
        no ID token of this login; TooManyRequests if too many logins wait for it.
        """
        if not 0 < len(code) <= MAX_CODE_CHARACTERS:
            raise AuthenticationError("the identity provider sent no code")
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "client_id": self._client_id,
            "code_verifier": pending.verifier,
        }
        credentials = ""
        if self._secret:
            pair = f"{quote(self._client_id, safe='')}:{quote(self._secret, safe='')}"
            credentials = f"Basic {base64.b64encode(pair.encode()).decode()}"
        with self._request():
            endpoint = await self._endpoint("token_endpoint")
            try:
                answer = await post_form(endpoint, urlencode(fields), credentials, self._limits, self._tls)
            except DownloadFailed as error:
                raise AuthenticationError(f"the identity provider did not accept the login: {error}") from None
        token = answer.get("id_token")
        if not isinstance(token, str) or not token.isascii():
            raise AuthenticationError("the identity provider sent no ID token: consoleOpenIDScope must contain openid")
        self._check(token, pending)
        return token.encode()

    def _check(self, token: str, pending: PendingLogin) -> None:
        """Check that the token belongs to this login. Its signature is not verified yet."""
        parts = token.split(".")
        claims = token_claims.json_object(decoded_base64(parts[1].encode()) or b"") if len(parts) == 3 else None
        nonce = None if claims is None else claims.get("nonce")
        if (
            claims is None
            or not isinstance(nonce, str)
            or not hmac.compare_digest(nonce.encode(), pending.nonce.encode())
        ):
            raise AuthenticationError("the ID token belongs to another login (its nonce differs): log in again")
        if claims.get("iss") != self._issuer:
            raise AuthenticationError(
                f"the issuer (iss) of the ID token is {str(claims.get('iss'))[:200]!r}, but must be {self._issuer!r}, the value "
                "of consoleOpenIDIssuer"
            )
        if self._client_id not in token_claims.audiences(claims, "aud"):
            raise AuthenticationError(
                "the audience (aud) of the ID token does not contain the value of consoleOpenIDClientId"
            )

    async def _endpoint(self, name: str) -> str:
        async with self._fetching:
            now_s = self._clock.monotonic_ms() / 1000
            if not self._document or now_s - self._fetched_s >= DOCUMENT_AGE_S:
                self._document = await self._discovered()
                self._fetched_s = now_s
        found = self._document.get(name)
        problem = url_problem(found, requires_https=self._requires_https) if isinstance(found, str) else "is missing"
        if problem or not isinstance(found, str):
            raise AuthenticationError(
                f"the discovery document of the identity provider cannot be used: {name} {problem}"
            )
        return found

    async def _discovered(self) -> dict[str, object]:
        url = self._issuer.rstrip("/") + DISCOVERY_PATH
        try:
            document = await download_json(url, self._limits, self._tls)
        except DownloadFailed as error:
            raise AuthenticationError(f"the identity provider cannot be reached: {error}") from None
        if document.get("issuer") != self._issuer:
            raise AuthenticationError(
                f"{url}: the member 'issuer' of this document is {str(document.get('issuer'))[:200]!r}, but must be "
                f"{self._issuer!r}, the value of consoleOpenIDIssuer"
            )
        return document

    @contextmanager
    def _request(self) -> Iterator[None]:
        if self._requests >= MAX_REQUESTS:
            raise TooManyRequests("too many logins wait for the identity provider; try again later")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
