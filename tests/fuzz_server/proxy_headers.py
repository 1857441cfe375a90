"""Hostile PROXY headers of both versions, drawn from a seed. No IO."""

from dataclasses import dataclass
from random import Random

from tests.support.load_balancer import header_v1, header_v2

SIGNATURE_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
PORTS = ("plain", "plain", "tls", "http")
"""Where a header is sent: to the ports of the binary protocol without and with TLS, and to the HTTP port."""
TRUNCATED = "truncated"


@dataclass(frozen=True)
class HostileHeader:
    """A header. After a proper one, the connection must work. `is_unfinished`: the broker must close the connection
    after `connectCommandTimeoutMs`.
    """

    kind: str
    port: str
    data: bytes
    is_proper: bool = False
    is_unfinished: bool = False


class HeaderMaker:
    """Draws headers."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def next(self) -> HostileHeader:
        random = self._random
        port = random.choice(PORTS)
        draw = random.random()
        valid = self._valid()
        if draw < 0.25:
            return HostileHeader("valid", port, valid, is_proper=True)
        if draw < 0.3:
            return HostileHeader("no header", port, b"", is_proper=True)
        if draw < 0.45:
            data = valid[: random.randrange(1, len(valid))]
            return HostileHeader(TRUNCATED, port, data, is_unfinished=True)
        if draw < 0.6:
            return HostileHeader("changed bytes", port, self._changed(valid))
        if draw < 0.7:
            return HostileHeader("repeated", port, valid * random.choice((2, 3, 200)))
        if draw < 0.85:
            return HostileHeader("version 1", port, self._odd_v1())
        return HostileHeader("version 2", port, self._odd_v2())

    def _valid(self) -> bytes:
        random = self._random
        host = random.choice(("192.0.2.7", "2001:db8::1", "::ffff:1.2.3.4", "255.255.255.255", "::"))
        number = random.choice((0, 1, 6650, 65535))
        plain = (
            b"PROXY UNKNOWN\r\n",
            b"PROXY UNKNOWN ffff:: x y z\r\n",
            self._v2(0x20, 0x11, b""),
            self._v2(0x21, 0, b"x" * 50),
        )
        return random.choice(
            (header_v1(host, number), header_v2(host, number), header_v2(host, number), random.choice(plain))
        )

    def _changed(self, data: bytes) -> bytes:
        random = self._random
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.randrange(len(changed))
            draw = random.random()
            if draw < 0.7:
                changed[at] = random.choice((0, 10, 13, 32, 48, 127, 128, 255, random.randrange(256)))
            elif draw < 0.85:
                changed[at:at] = random.randbytes(random.choice((1, 3)))
            elif len(changed) > 1:
                del changed[at]
        return bytes(changed)

    def _odd_v1(self) -> bytes:
        random = self._random
        hosts = (
            "1.2.3.4",
            "::1",
            "",
            " ",
            "1.2.3",
            "1.2.3.4.5",
            "fe80::1%eth0",
            "::1%",
            "999.1.1.1",
            "1.2.3.4/8",
            "x" * 60,
            "0x1.2.3.4",
            "\xff",
        )
        ports = ("1", "0", "65536", "-1", "+1", " 1", "01", "1_0", "", "99999999999", "\xb2", "1\0", "x")
        words = [
            random.choice(("PROXY", "PROXY", "PROXY", "proxy", "PROXY ")),
            random.choice(("TCP4", "TCP6", "UNKNOWN", "UDP4", "", "TCP4\t")),
            *(random.choice(hosts), random.choice(hosts), random.choice(ports), random.choice(ports)),
        ]
        if random.random() < 0.2:
            words = words[: random.randrange(1, 6)]
        end = random.choice(("\r\n", "\r\n", "\r\n", "\n", "\r", "", "\r\r\n", " " * 120 + "\r\n"))
        return (" ".join(words) + end).encode("latin-1")

    def _odd_v2(self) -> bytes:
        random = self._random
        command = random.choice((0x20, 0x21, 0x21, 0x22, 0x2F, 0x10, 0x31, 0xFF, 0))
        family = random.choice((0, 0x10, 0x11, 0x11, 0x12, 0x21, 0x21, 0x22, 0x31, 0x32, 0xF1, 0xFF))
        body = random.randbytes(random.choice((0, 1, 11, 12, 35, 36, 216, 4080, 4081, 60_000)))
        length = random.choice((None, None, 0, 1, 12, 4080, 4081, 65535))
        return self._v2(command, family, body, length)

    def _v2(self, command: int, family: int, body: bytes, length: int | None = None) -> bytes:
        return (
            SIGNATURE_V2
            + bytes((command, family))
            + (len(body) if length is None else length).to_bytes(2, "big")
            + body
        )
