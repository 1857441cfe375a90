"""Expired and malformed tokens over the binary protocol, HTTP and WebSocket, on brokers with authentication by tokens."""

import base64
import json
import time
from typing import Any

import jwt
from tests.differential.harness import Run, secured_scenario
from tests.differential.scenarios_security import V2, with_namespace
from tests.differential.scenarios_websocket import opened


def _base64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _tokens(run: Run) -> dict[str, str]:
    """Return tokens by name. Names of invalid ones begin with "invalid"."""
    good = run.token_of("writer")
    header, payload, signature = good.split(".")
    now_s = int(time.time())

    def signed(**claims: Any) -> str:
        # Not `jwt.encode`, which refuses claims of wrong types.
        return jwt.PyJWS().encode(json.dumps(claims).encode(), run.secret, "HS256")

    valid = {
        "good": good,
        "with times": signed(sub="writer", exp=now_s + 3600, nbf=now_s - 60, iat=now_s - 60),
    }
    invalid = {
        "expired": signed(sub="writer", exp=now_s - 3600),
        "expired just now": signed(sub="writer", exp=now_s - 1),
        "not valid yet": signed(sub="writer", nbf=now_s + 3600),
        "expiry as text": signed(sub="writer", exp="tomorrow"),
        "no subject": signed(iss="writer"),
        "empty subject": signed(sub=""),
        "subject is null": signed(sub=None),
        "subject is a number": signed(sub=5),
        "payload is a list": jwt.PyJWS().encode(b'["writer"]', run.secret, "HS256"),
        "payload is no JSON": jwt.PyJWS().encode(b"writer", run.secret, "HS256"),
        "another key": jwt.encode({"sub": "writer"}, b"x" * 32, "HS256"),
        "another payload": f"{header}.{_base64(json.dumps({'sub': 'admin'}))}.{signature}",
        "unsigned": jwt.encode({"sub": "writer"}, "", "none"),
        "no signature": f"{header}.{payload}.",
        "two parts": f"{header}.{payload}",
        "four parts": f"{good}.{signature}",
        "header is no JSON": f"{_base64('HS256')}.{payload}.{signature}",
        "no Base64": "!.!.!",
        "dots": "..",
        "one word": "writer",
    }
    return valid | {f"invalid, {name}": token for name, token in invalid.items()}


@secured_scenario
def tokens_of_connections(run: Run) -> None:
    """The answer to CONNECT."""
    for name, token in _tokens(run).items():
        with run.raw(connected=False) as raw:
            reply = raw.connect(auth_method_name="token", auth_data=token.encode())
            run.step(name, [reply["type"], reply.get("error"), reply.get("request_id"), raw.closed])


@secured_scenario
def tokens_of_requests(run: Run) -> None:
    """The status of REST requests with the token in the header, and of WebSocket sessions with it in the header and in the URL."""
    namespace = with_namespace(run)
    path = f"persistent/{namespace}/t"
    for name, token in _tokens(run).items():
        status, _, _ = run.http("GET", f"{V2}/{path}/partitions?checkAllowAutoCreation=false", ..., "", token)
        run.step(f"{name}: REST", status)
        with opened(run, f"{name}: WebSocket, header", f"v2/producer/{path}", Authorization=f"Bearer {token}"):
            pass
        with opened(run, f"{name}: WebSocket, URL", f"v2/producer/{path}?token={token}"):
            pass
