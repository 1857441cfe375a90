"""PROXY headers of load balancers, on brokers that expect them."""

import json

from tests.differential.harness import Run, proxied_scenario
from tests.support.load_balancer import header_v1, header_v2

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
HEADERS: dict[str, tuple[bytes, str]] = {
    "none": (b"", ""),
    "version 1": (header_v1("203.0.113.9", 4711), "203.0.113.9:4711"),
    "version 1, IPv6": (header_v1("2001:db8::9", 4711), "4711"),
    "version 1, unknown": (b"PROXY UNKNOWN\r\n", ""),
    "version 1, unknown with addresses": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ""),
    "version 2": (header_v2("203.0.113.10", 4712), "203.0.113.10:4712"),
    "version 2, IPv6": (header_v2("2001:db8::10", 4712), "4712"),
    "version 2, local": (SIGNATURE + b"\x20\x00\x00\x00", ""),
}
BROKEN: dict[str, bytes] = {
    "version 1, no address": b"PROXY TCP4 a b 1 2\r\n",
    "version 1, port": b"PROXY TCP4 192.0.2.1 192.0.2.2 70000 1\r\n",
    "version 1, parts": b"PROXY TCP4 192.0.2.1\r\n",
    "version 1, family": b"PROXY TCP9 192.0.2.1 192.0.2.2 1 2\r\n",
    "version 1, long": b"PROXY TCP4 " + b"1" * 200 + b"\r\n",
    "version 2, version": SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
    "version 2, short": SIGNATURE + b"\x21\x11\x00\x04" + bytes(4),
}


@proxied_scenario
def proxy_headers(run: Run) -> None:
    """Connections with valid headers: the answer to CONNECT, and whether statistics show the address of the header."""
    for number, (name, (header, address)) in enumerate(HEADERS.items()):
        topic = run.topic(f"t{number}")
        with run.raw(connected=False) as raw:
            raw.socket.sendall(header)
            run.step(f"{name}: answer", raw.connect().get("type"))
            if raw.closed:
                continue
            run.step(f"{name}: subscribed", raw.subscribe(topic).get("type"))
            _, _, body = run.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats", ..., "")
            (consumer,) = json.loads(body)["subscriptions"]["sub"]["consumers"]
            run.step(f"{name}: has the address", address in str(consumer["address"]) and bool(address))


@proxied_scenario
def proxy_headers_broken(run: Run) -> None:
    """Connections with headers that break the protocol: the broker ends them."""
    for name, header in BROKEN.items():
        with run.raw(connected=False) as raw:
            raw.socket.sendall(header)
            run.step(name, raw.connect().get("type"))
    with run.raw(connected=False) as raw:
        run.step("afterwards", raw.connect().get("type"))
