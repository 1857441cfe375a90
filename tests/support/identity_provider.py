"""A small OpenID Connect identity provider over TLS: discovery, keys, and tokens for client credentials and for logins of users.

Its keys are real and can be rotated. `faults` replaces the responses of paths, to test clients with a provider that is
slow, broken or hostile.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import secrets
import ssl
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from tests.support import credentials
from tests.support.credentials import CertificateFiles

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"
TOKEN = "/oauth/token"
AUTHORIZE = "/authorize"
AUDIENCE = "pulsar-cluster"
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
Fault = Callable[[http.server.BaseHTTPRequestHandler], None]


def new_key(algorithm: str) -> Key:
    """Return a new key for `algorithm`. RSA keys are shared by all tests, because their creation is slow."""
    match algorithm[:2], algorithm:
        case (("RS" | "PS"), _):
            return credentials.rsa_key()
        case _, "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case _, "ES512":
            return ec.generate_private_key(ec.SECP521R1())
        case "ES", _:
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Key, key_id: str | None, algorithm: str, **members: Any) -> dict[str, Any]:
    """Return the public key as a member of a key set."""
    document: dict[str, Any] = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    document.pop("key_ops", None)
    return {**document, "use": "sig", "alg": algorithm, **({} if key_id is None else {"kid": key_id}), **members}


class IdentityProvider:
    """Issues tokens, and serves its documents while `serving` runs."""

    def __init__(self, algorithm: str = "RS256", key_id: str = "first") -> None:
        self.issuer = "https://localhost:1"
        self.keys: dict[str, tuple[Key, str]] = {}
        self.published: list[dict[str, Any]] = []
        self.add_key(algorithm, key_id)
        self.lifetime_s = 300.0
        self.clients: dict[str, str] = {"app": "secret of app"}
        """Secrets of clients by client id, which is the subject of their tokens."""
        self.requests: Counter[str] = Counter()
        self.faults: dict[str, Fault] = {}
        self.token_requests: list[dict[str, str]] = []
        self.authorize_requests: list[dict[str, str]] = []
        self.user: str | None = "app"
        """The user that the login page signs in; None: the login is refused."""
        self.id_token_claims: dict[str, Any] = {}
        """Claims that replace those of ID tokens."""
        self._codes: dict[str, tuple[dict[str, str], dict[str, Any]]] = {}

    def add_key(self, algorithm: str, key_id: str) -> None:
        self.keys[key_id] = new_key(algorithm), algorithm
        self.published.append(public_jwk(self.keys[key_id][0], key_id, algorithm))

    def rotate(self, algorithm: str, key_id: str) -> None:
        """Replace all keys by a new one."""
        self.keys.clear()
        self.published.clear()
        self.add_key(algorithm, key_id)

    def token(self, subject: str = "app", *, header: dict[str, Any] | None = None, **changes: Any) -> str:
        """Return a token of the newest key. `changes` replaces claims; None removes a claim or a member of the header."""
        key_id, (key, algorithm) = list(self.keys.items())[-1]
        now_s = time.time()
        claims = {
            "iss": self.issuer,
            "sub": subject,
            "aud": AUDIENCE,
            "iat": int(now_s),
            "nbf": int(now_s),
            "exp": now_s + self.lifetime_s,
        } | changes
        present = {name: value for name, value in claims.items() if value is not None}
        headers = {name: value for name, value in {"kid": key_id, **(header or {})}.items() if value is not None}
        # Not `jwt.encode`, which refuses claims of wrong types.
        return jwt.PyJWS().encode(json.dumps(present).encode(), key, algorithm, headers=headers)

    def settings(self, authority: Path) -> dict[str, str]:
        """Return the configuration of a broker that trusts this provider."""
        return {
            "authenticationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID",
            "openIDAllowedTokenIssuers": self.issuer,
            "openIDAllowedAudiences": AUDIENCE,
            "openIDTokenIssuerTrustCertsFilePath": str(authority),
        }

    def login_settings(self, authority: Path, host: str, client_id: str) -> dict[str, str]:
        """Return the configuration of a broker whose console at `host` logs users in as the client `client_id`. The user
        `boss` is a superuser.
        """
        return self.settings(authority) | {
            "httpAllowedHosts": host,
            "openIDAllowedAudiences": f"{AUDIENCE},{client_id}",
            "authorizationEnabled": "true",
            "superUserRoles": "boss",
            "consoleOpenIDIssuer": self.issuer,
            "consoleOpenIDClientId": client_id,
            "consoleOpenIDClientSecret": credentials.data_url(self.clients[client_id].encode()),
            "consoleOpenIDRedirectUris": f"http://{host}/console/callback",
        }

    def client_parameters(self, directory: Path, client_id: str = "app", **more: str) -> str:
        """Return the parameters of the client-credentials flow, with the key file in `directory`."""
        path = directory / f"{client_id}.json"
        content = {
            "type": "client_credentials",
            "client_id": client_id,
            "client_secret": self.clients[client_id],
            "issuer_url": self.issuer,
        }
        path.write_text(json.dumps(content))
        parameters = {"type": "client_credentials", "issuer_url": self.issuer, "issuerUrl": self.issuer}
        return json.dumps(
            {**parameters, "private_key": path.as_uri(), "privateKey": path.as_uri(), "audience": AUDIENCE, **more}
        )

    @contextmanager
    def serving(self, certificate: CertificateFiles) -> Iterator[IdentityProvider]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                provider.respond(self, self.path, b"")

            def do_POST(self) -> None:
                provider.respond(self, self.path, self.rfile.read(int(self.headers["content-length"])))

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> Any:
                connection, address = super().get_request()
                connection.settimeout(20)
                return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that closes the connection early

        server = Server(("127.0.0.1", 0), Handler)
        self.issuer = f"https://localhost:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def respond(self, handler: http.server.BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        self.requests[path] += 1
        fault = self.faults.get(path)
        if fault is not None:
            fault(handler)
        elif path == DISCOVERY:
            endpoints = {
                "jwks_uri": KEYS,
                "token_endpoint": TOKEN,
                "authorization_endpoint": AUTHORIZE,
            }
            send(handler, {"issuer": self.issuer, **{name: self.issuer + path for name, path in endpoints.items()}})
        elif path.startswith(AUTHORIZE):
            send(handler, b"", 302, Location=self.authorized(path))
        elif path == KEYS:
            send(handler, {"keys": self.published})
        elif path == TOKEN:
            self._issue(handler, body)
        else:
            send(handler, {"error": "not found"}, 404)

    def authorized(self, address: str, **claims: Any) -> str:
        """Sign in `user` without asking. Return the address to which the browser is sent back from the login page `address`.
        `claims` replace those of the ID token of this login.
        """
        form = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        self.authorize_requests.append(form)
        assert form["response_type"] == "code"
        assert form["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self._codes[code] = form, claims
        answer = {"state": form["state"], **({"error": "access_denied"} if self.user is None else {"code": code})}
        return f"{form['redirect_uri']}?{urlencode(answer)}"

    def _issue_to_user(self, form: dict[str, str]) -> dict[str, object] | None:
        """Return the answer for the code of a login; None if the code, its verifier or the client is wrong."""
        login, claims = self._codes.pop(form.get("code", ""), (None, {}))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = urlsafe_b64encode(digest).rstrip(b"=").decode()
        client_id = form.get("client_id", "")
        if (
            login is None
            or login["code_challenge"] != challenge
            or login["redirect_uri"] != form.get("redirect_uri")
            or self.clients.get(client_id) != form.get("client_secret")
        ):
            return None
        changes = {"aud": client_id, "nonce": login["nonce"]} | self.id_token_claims | claims
        token = self.token(str(self.user), **changes)
        return {"id_token": token, "access_token": "opaque", "token_type": "Bearer"}

    def _issue(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.headers["content-type"].startswith("application/json"):
            form = json.loads(body)
        else:
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        scheme, _, basic = handler.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            form["client_id"], _, form["client_secret"] = map(unquote, b64decode(basic).decode().partition(":"))
        self.token_requests.append(form)
        client_id = form.get("client_id", "")
        if form.get("grant_type") == "authorization_code":
            answer = self._issue_to_user(form)
            send(handler, answer or {"error": "invalid_grant"}, 200 if answer else 400)
            return
        if form.get("grant_type") != "client_credentials" or self.clients.get(client_id) != form.get("client_secret"):
            send(handler, {"error": "invalid_client", "error_description": "wrong client id or secret"}, 401)
            return
        token = self.token(client_id, aud=form.get("audience", AUDIENCE))
        send(handler, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime_s)})


def send(
    handler: http.server.BaseHTTPRequestHandler,
    document: object,
    status: int = 200,
    content_type: str = "application/json",
    **headers: str,
) -> None:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", content_type)
    handler.send_header("Content-Length", str(len(content)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)
