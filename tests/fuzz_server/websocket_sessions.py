"""Hostile WebSocket sessions, drawn from a seed. No IO.

A session is a handshake and the frames that follow it. Most handshakes are valid HTTP requests, which must be answered; their
parameters may be invalid. Frames that end a connection are drawn for half of the sessions only, so that the others get further.
"""

import base64
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any
from urllib.parse import quote

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
TOPICS = tuple(f"persistent/websocket/ns/t{number}" for number in range(6))
ODD_TOPICS = (
    "persistent/websocket/ns/%00",
    "persistent/websocket/ns/%2F..%2F",
    "persistent/websocket/ns/%ff%fe",
    "persistent/websocket/ns/a%0d%0ab",
    "persistent/nobody/here/t",
    "non-persistent/websocket/ns/t",
    "persistent/websocket/ns",
    "persistent/websocket/ns/t/x/y/z",
    "persistent/websocket/ns/" + "x" * 3000,
    "other/websocket/ns/t",
    "persistent/websocket/ns/t0-partition-7",
    "persistent/websocket/parts/p",
)
PARAMETERS: dict[str, tuple[str, ...]] = {
    "producer": (
        *("token", "producerName", "initialSequenceId", "sendTimeoutMillis", "batchingEnabled", "batchingMaxMessages"),
        *("batchingMaxPublishDelay", "maxPendingMessages", "messageRoutingMode", "hashingScheme", "compressionType"),
        "encryptionKeys",
    ),
    "consumer": (
        *("token", "cryptoFailureAction", "receiverQueueSize", "subscriptionType", "subscriptionMode", "consumerName"),
        *("subscriptionInitialPosition", "priorityLevel", "ackTimeoutMillis", "negativeAckRedeliveryDelay"),
        *("maxRedeliverCount", "deadLetterTopic", "deadLetterSubscriptionName", "pullMode"),
    ),
    "reader": ("token", "cryptoFailureAction", "receiverQueueSize", "readerName", "messageId"),
}
CHOICES = (
    *("app", "app,app", "app,none", "../keys/app", "bad", ","),
    *("true", "false", "Shared", "Exclusive", "Failover", "Key_Shared", "NonDurable", "Earliest", "CONSUME", "ZSTD"),
    *("RoundRobinPartition", "Murmur3_32Hash", "earliest", "latest", "LZ4", "SNAPPY", "ZLIB", "DISCARD"),
)
NUMBERS = (0, 1, 2, 10, -1, 1000, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30)
ID_NUMBERS = (0, 1, 2, 3, -1, 250_000, 2**31 - 1, 2**31, 2**63, 2**64 - 1)
ODD_TEXTS = ("", " ", "\0", "x", "x" * 3000, "é☃\U0001f600", "[", "(a*)*b", "1e9", "+1", "٣", "%", "AAAA", "CAEQAg==")
TIMES = (
    *("1969-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "2024-02-30T00:00:00Z"),
    *("2024-01-01T00:00:00Z", "2024-01-01", "20240101T000000Z", "2024-W01-1T00:00:00Z", "now", "1"),
)
MEMBERS = (
    *("payload", "properties", "context", "key", "replicationClusters", "eventTime", "deliverAt", "deliverAfterMs"),
    *(
        "encryptionParam",
        "compressionType",
        "uncompressedMessageSize",
        "type",
        "messageId",
        "permitMessages",
        "unknown",
    ),
)
COMMANDS = ("permit", "unsubscribe", "isEndOfTopic", "negativeAcknowledge", "acknowledge", "", "x" * 200)
CLOSE_CODES = (0, 999, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1011, 1015, 1016, 2999, 3000, 4999, 5000, 65535)
INVALID_UTF_8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b'{"payload":"\xff"}')
COMPRESSION = "Sec-WebSocket-Extensions: permessage-deflate"
"""The header line of a client that compresses its frames."""
MAX_TEXT_BYTES = 1 << 20
"""The default of `webSocketMaxTextFrameSize`."""


def ws_frame(
    opcode: int, payload: bytes, mask: bytes | None = b"\x01\x02\x03\x04", *, is_last: bool = True, reserved: int = 0
) -> bytes:
    """Return one frame. `mask` None: the frame is not masked, which a server must refuse."""
    size, flag = len(payload), 0 if mask is None else 0x80
    head = bytes(((0x80 if is_last else 0) | reserved << 4 | opcode,))
    if size < 126:
        head += bytes((flag | size,))
    elif size < 1 << 16:
        head += bytes((flag | 126,)) + struct.pack(">H", size)
    else:
        head += bytes((flag | 127,)) + struct.pack(">Q", size)
    if mask is None:
        return head + payload
    return head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    """Return `payload` masked with four bytes; applied twice, the payload."""
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


def handshake(target: str, *lines: str) -> bytes:
    """Return a valid handshake with further header lines."""
    head = (
        f"GET {target} HTTP/1.1",
        "Host: localhost",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        *lines,
    )
    return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1", "replace")


def compressed(text: bytes) -> bytes:
    """Return the payload of a compressed message (RFC 7692)."""
    encoder = zlib.compressobj(wbits=-15)
    return (encoder.compress(text) + encoder.flush(zlib.Z_SYNC_FLUSH))[:-4]


@cache
def _bomb_of(size: int) -> bytes:
    return compressed(b" " * size)


@dataclass(frozen=True)
class HostileSession:
    """A handshake with its kind, and the kinds and bytes of the frames. A handshake that is proper must be answered."""

    kind: str
    role: str
    handshake: bytes
    is_proper: bool
    frames: tuple[tuple[str, bytes], ...]


class SessionMaker:
    """Draws sessions."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._is_compressed = False

    def next(self, most_frames: int) -> HostileSession:
        random = self._random
        role = random.choice(("producer", "producer", "consumer", "consumer", "reader", "multi"))
        draw = random.random()
        if draw < 0.55:
            lines = (COMPRESSION,) if random.random() < 0.3 else ()
            kind, data, is_proper = "plain handshake", handshake(self._target(role, is_odd=False), *lines), True
        elif draw < 0.75:
            kind, data, is_proper = "odd parameters", handshake(self._target(role, is_odd=True)), True
        elif draw < 0.9:
            kind, data, is_proper = "odd headers", self._odd_headers(role), True
        else:
            kind, data, is_proper = (
                "changed handshake",
                self._changed(handshake(self._target(role, is_odd=False))),
                False,
            )
        self._is_compressed = f"\r\n{COMPRESSION}\r\n".encode() in data
        count = min(most_frames, random.choice((1, 3, 10, 40)))
        return HostileSession(kind, role, data, is_proper, self._frames(role, count))

    # --- handshakes

    def _target(self, role: str, *, is_odd: bool) -> str:
        random = self._random
        topic = random.choice(ODD_TOPICS) if is_odd and random.random() < 0.4 else random.choice(TOPICS)
        subscription = random.choice(("s", "s", "s1", "%00", "x" * 300)) if is_odd else f"s{random.randrange(30)}"
        match role:
            case "multi":
                names = [
                    quote("://".join(random.choice(TOPICS).split("/", 1)), safe="")
                    for _ in range(random.choice((1, 2, 5)))
                ]
                choice = f"topics={','.join(names)}"
                if is_odd and random.random() < 0.6:
                    pattern = random.choice(
                        ("persistent://websocket/ns/.*", "(a*)*b", "[", "x" * 2000, "persistent://websocket/ns/(a*)*b")
                    )
                    choice = random.choice(
                        (
                            f"topicsPattern={quote(pattern, safe='')}",
                            "topics=,,",
                            "topics=",
                            f"{choice}&topicsPattern=x",
                        )
                    )
                target = f"/ws/v3/consumer/{subscription}?{choice}"
            case "consumer":
                target = f"/ws/v2/consumer/{topic}/{subscription}?subscriptionType=Shared"
            case _:
                target = f"/ws/v2/{role}/{topic}?x=1"
        if not is_odd:
            if role == "producer" and random.random() < 0.3:
                target += "&batchingEnabled=true"
            if role in {"consumer", "multi"}:
                target += random.choice(
                    ("", "&pullMode=true", "&subscriptionInitialPosition=Earliest", "&receiverQueueSize=3")
                )
            return target
        known = PARAMETERS["consumer" if role == "multi" else role]
        for _ in range(random.choice((1, 1, 2, 4, 10))):
            target += f"&{random.choice(known)}={quote(self._parameter(), safe='%')}"
        return target

    def _parameter(self) -> str:
        random = self._random
        draw = random.random()
        if draw < 0.35:
            return random.choice(CHOICES)
        if draw < 0.65:
            return str(random.choice(NUMBERS))
        if draw < 0.85:
            return random.choice(ODD_TEXTS)
        content = random.choice(
            (
                b"\xff" * 20,
                b'{"k":{"keyValue":"AAAA"}}',
                b"[" * 2000,
                b'{"k":{"keyValue":1}}',
                b'{"k":1}',
                self._wild_id(),
                self._wild_id(),
            )
        )
        return base64.b64encode(content).decode()

    def _odd_headers(self, role: str) -> bytes:
        random = self._random
        lines = (
            *(
                "Origin: http://[",
                "Origin: null",
                "Origin:",
                "Origin: http://other",
                "Origin: http://localhost",
                "Origin: \xff",
            ),
            *(
                "Origin: http://a:b:c/",
                "Origin: //[::1",
                "Origin: http://[::1]:99999999",
                "Host: [",
                "Host: a b",
                "Host: \xff",
            ),
            *(
                "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99",
                "Sec-WebSocket-Extensions: ;;=,",
            ),
            *(
                COMPRESSION,
                "Sec-WebSocket-Protocol: a, b,,",
                "Sec-WebSocket-Protocol: \xff",
            ),
            *(
                "Sec-WebSocket-Key: x",
                "Sec-WebSocket-Key: \xff\xff",
                "Sec-WebSocket-Version: 12",
                "Upgrade: h2c",
                "Connection: close",
            ),
            *(
                "Authorization: Bearer x",
                "Authorization: Basic \xff",
                "Cookie: " + "c" * 3000,
                "X-Original-Principal: \xff",
            ),
        )
        return handshake(
            self._target(role, is_odd=random.random() < 0.2), *random.sample(lines, random.choice((1, 1, 2, 5)))
        )

    def _changed(self, data: bytes) -> bytes:
        random = self._random
        draw = random.random()
        if draw < 0.15:
            return data[: random.randrange(1, len(data))]
        if draw < 0.3:
            lines = data.split(b"\r\n")
            del lines[random.randrange(1, 6)]
            return b"\r\n".join(lines)
        if draw < 0.4:
            return data[:-2] + b"Content-Length: 5\r\n\r\nabcde"
        return self._with_changed_bytes(data)

    def _with_changed_bytes(self, data: bytes) -> bytes:
        random = self._random
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 6))):
            changed[random.randrange(len(changed))] = random.choice(
                (0, 9, 10, 13, 32, 127, 128, 255, random.randrange(256))
            )
        return bytes(changed)

    # --- frames

    def _frames(self, role: str, count: int) -> tuple[tuple[str, bytes], ...]:
        random = self._random
        kinds: list[tuple[str, Callable[[str], bytes]]] = [
            *[("command", self._command)] * 10,
            *[("odd members", self._odd_members)] * 8,
            *[("fragments", self._fragments)] * 3,
            *[("ping", lambda _: ws_frame(PING, random.randbytes(random.choice((0, 4, 125))), random.randbytes(4)))]
            * 2,
            *[("pong", lambda _: ws_frame(PONG, random.randbytes(random.choice((0, 4, 125)))))] * 1,
        ]
        if self._is_compressed:
            kinds += [("compressed", self._compressed)] * 10
        if role == "producer":  # Texts that are no JSON are answered; they end the session of a consumer.
            kinds += [*[("no JSON", self._no_json)] * 3, ("large base64", self._large)]
        if random.random() < 0.5:
            kinds += [
                *[("no JSON", self._no_json)] * 2,
                *[("large base64", self._large), ("too large", self._too_large)] * 1,
                *[("binary", lambda _: ws_frame(BINARY, random.randbytes(random.choice((0, 10, 3000)))))] * 2,
                *[("close", self._close)] * 2,
                *[("control frame", self._bad_control)] * 2,
                *[("invalid UTF-8", lambda _: ws_frame(TEXT, random.choice(INVALID_UTF_8)))] * 2,
                *[("no mask", lambda role: ws_frame(TEXT, self._valid(role), None))] * 1,
                *[("reserved", self._reserved)] * 2,
                *[("length", self._wrong_length)] * 2,
                *[("bad fragments", self._bad_fragments)] * 2,
                *[("changed bytes", lambda role: self._with_changed_bytes(self._command(role)))] * 3,
                *[("half a frame", self._half)] * 1,
            ]
            if self._is_compressed:
                kinds += [
                    *[("compressed too large", self._bomb)] * 6,
                    *[("damaged compression", lambda role: self._with_changed_bytes(self._compressed(role)))] * 2,
                ]
        drawn = (random.choice(kinds) for _ in range(count))
        return tuple((kind, make(role)) for kind, make in drawn)

    def _command(self, role: str) -> bytes:
        return ws_frame(TEXT, self._valid(role), self._random.randbytes(4))

    def _valid(self, role: str) -> bytes:
        return json.dumps(self._members(role)).encode()

    def _members(self, role: str) -> dict[str, Any]:
        random = self._random
        if role == "producer":
            members: dict[str, Any] = {
                "payload": base64.b64encode(random.randbytes(random.choice((0, 1, 30, 3000)))).decode()
            }
            more = {
                "context": "c",
                "key": "k",
                "properties": {"a": "b"},
                "deliverAfterMs": 20,
                "eventTime": "2024-01-01T00:00:00Z",
            }
            return members | {name: more[name] for name in random.sample([*more], random.choice((0, 0, 1, 3)))}
        if random.random() < 0.3:
            return {"type": random.choice(("isEndOfTopic", "permit")), "permitMessages": random.randrange(20)}
        id_bytes = b"\x08" + bytes((random.randrange(8),)) + b"\x10" + bytes((random.randrange(30),))
        more = {} if random.random() < 0.7 else {"type": "negativeAcknowledge"}
        return {"messageId": base64.b64encode(id_bytes).decode(), **more}

    def _odd_members(self, role: str) -> bytes:
        random = self._random
        members = self._members(role)
        for _ in range(random.choice((1, 1, 2, 4))):
            name = random.choice(MEMBERS)
            members[name] = self._odd_value(name)
        if role != "producer" and random.random() < 0.5:
            members["type"] = random.choice(COMMANDS)
        try:
            text = json.dumps(members).encode()
        except ValueError:
            text = b"{}"
        return ws_frame(TEXT, text, random.randbytes(4))

    def _odd_value(self, name: str) -> Any:
        random = self._random
        draw = random.random()
        if name == "eventTime" and draw < 0.6:
            return random.choice(TIMES)
        if name == "messageId" and draw < 0.6:
            return base64.b64encode(
                random.choice((random.randbytes(random.choice((1, 5, 40))), self._wild_id()))
            ).decode()
        if draw < 0.3:
            return random.choice(NUMBERS)
        if draw < 0.6:
            return random.choice((*ODD_TEXTS, "\ud800", "a\ud800b"))
        return random.choice(
            (
                None,
                True,
                False,
                1.5,
                1e308,
                float("inf"),
                float("nan"),
                [],
                {},
                [[]],
                ["\ud800"],
                {"a": None},
                {"": ""},
                {"a": 1},
                [1, "a", None],
                {"a": {"b": "c"}},
                ["east"],
                ["standalone"],
                {"\0": "\0"},
                {str(each): "x" for each in range(2000)},
            )
        )

    def _wild_id(self) -> bytes:
        """A message id, usually with values out of range: ledger, entry, partition, batch index, and batch size."""
        random = self._random
        others = random.sample((0x18, 0x20, 0x30), random.choice((0, 1, 2, 2, 3)))
        parts = b""
        for tag in (0x08, 0x10, *others):
            value = random.choice((*ID_NUMBERS, random.randrange(40))) & (1 << 64) - 1
            parts += bytes((tag,))
            while value > 127:
                parts += bytes((value & 127 | 128,))
                value >>= 7
            parts += bytes((value,))
        return parts

    def _no_json(self, role: str) -> bytes:
        random = self._random
        valid = self._valid(role)
        return ws_frame(
            TEXT,
            random.choice(
                (
                    b"",
                    b" ",
                    b"null",
                    b"[]",
                    b"1",
                    b'"x"',
                    b"{",
                    b"\xef\xbb\xbf{}",
                    b"[" * 100_000,
                    b'{"a":' * 50_000,
                    b"NaN",
                    b"-",
                    b'{"payload":' * 2000,
                    b'{"payload":"\\ud800"}',
                    b'{"payload":1e999}',
                    b'{"deliverAt":' + b"9" * 5000 + b"}",
                    valid[: random.randrange(len(valid))],
                    valid + valid,
                    b'{"payload":"","payload":1,"payload":"AA=="}',
                    b"{'a':1}",
                )
            ),
        )

    def _large(self, role: str) -> bytes:
        random = self._random
        size = random.choice((70_000, 300_000, MAX_TEXT_BYTES // 2))
        name = random.choice(("payload", "payload", "messageId", "context", "key"))
        return ws_frame(
            TEXT, json.dumps({"payload": "", name: random.choice(("A", "=", "é", "A=")) * (size // 4)}).encode()
        )

    def _too_large(self, role: str) -> bytes:
        text = self._valid(role).ljust(MAX_TEXT_BYTES + 1)
        if self._random.random() < 0.5:
            return ws_frame(TEXT, text)
        return ws_frame(TEXT, text[:-1], is_last=False) + ws_frame(CONTINUATION, text[-1:])

    def _close(self, role: str) -> bytes:
        random = self._random
        code = struct.pack(">H", random.choice(CLOSE_CODES))
        return ws_frame(
            CLOSE, random.choice((b"", b"\x03", code, code + b"bye", code + b"\xff\xfe", code + b"x" * 123))
        )

    def _bad_control(self, role: str) -> bytes:
        random = self._random
        opcode = random.choice((CLOSE, PING, PONG))
        if random.random() < 0.5:
            return ws_frame(opcode, random.randbytes(random.choice((126, 3000, 70_000))))
        return ws_frame(opcode, b"\x03\xe8", is_last=False)

    def _reserved(self, role: str) -> bytes:
        random = self._random
        if random.random() < 0.5:
            return ws_frame(random.choice((3, 4, 7, 11, 15)), self._valid(role))
        reserved = (1, 2, 3, 5, 6, 7) if self._is_compressed else (1, 2, 3, 4, 5, 6, 7)
        return ws_frame(TEXT, self._valid(role), reserved=random.choice(reserved))

    def _compressed(self, role: str) -> bytes:
        """A valid text that is compressed, in one or more frames."""
        random = self._random
        content = compressed(self._valid(role).ljust(random.choice((0, 0, 3000, 200_000))))
        if random.random() < 0.6:
            return ws_frame(TEXT, content, random.randbytes(4), reserved=4)
        cuts = sorted(random.randrange(len(content) + 1) for _ in range(random.choice((1, 1, 5))))
        data, opcode = b"", TEXT
        for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            reserved = 4 if opcode == TEXT else 0
            data += ws_frame(opcode, content[start:end], random.randbytes(4), is_last=False, reserved=reserved)
            opcode = CONTINUATION
        return data + ws_frame(CONTINUATION, b"")

    def _bomb(self, role: str) -> bytes:
        """A text that is too large only after decompression."""
        size = self._random.choice((MAX_TEXT_BYTES + 1, 3 * MAX_TEXT_BYTES, 60 * MAX_TEXT_BYTES))
        return ws_frame(TEXT, _bomb_of(size), reserved=4)

    def _wrong_length(self, role: str) -> bytes:
        random = self._random
        code, size = random.choice(
            ((127, 2**63), (127, 2**64 - 1), (127, 2**40), (127, 5), (126, 5), (127, MAX_TEXT_BYTES + 1))
        )
        packed = struct.pack(">Q" if code == 127 else ">H", size)
        opcode = random.choice((TEXT, BINARY, PING, CONTINUATION))
        return bytes((0x80 | opcode, 0x80 | code)) + packed + b"\0\0\0\0" + random.choice((b"", b"abcde", b"x" * 3000))

    def _fragments(self, role: str) -> bytes:
        """A valid text in fragments, with control frames between them."""
        random = self._random
        text, data, opcode = self._valid(role), b"", TEXT
        if random.random() < 0.1:
            text = text.ljust(random.choice((300, 2000)))
            cuts = list(range(1, len(text)))
        else:
            cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.choice((1, 3, 20))))
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            data += ws_frame(opcode, text[start:end], random.randbytes(4), is_last=False)
            opcode = CONTINUATION
            if random.random() < 0.2:
                data += ws_frame(PING, b"between")
        return data + ws_frame(CONTINUATION, b"")

    def _bad_fragments(self, role: str) -> bytes:
        random = self._random
        text = self._valid(role)
        return random.choice(
            (
                ws_frame(CONTINUATION, text),
                ws_frame(TEXT, text, is_last=False) + ws_frame(TEXT, text),
                ws_frame(TEXT, b'{"payload":"\xe2', is_last=False) + ws_frame(CONTINUATION, b"\x82"),
                ws_frame(TEXT, b"", is_last=False) + ws_frame(CONTINUATION, b"", is_last=False) * 3000,
                ws_frame(TEXT, b"x", is_last=False) + ws_frame(CONTINUATION, b"x" * 60_000, is_last=False) * 20,
                ws_frame(BINARY, b"x", is_last=False) + ws_frame(CLOSE, b"\x03\xe8"),
            )
        )

    def _half(self, role: str) -> bytes:
        data = self._command(role)
        return data[: self._random.randrange(1, len(data))]
