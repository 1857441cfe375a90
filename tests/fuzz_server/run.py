"""Hostile frames, HTTP requests, WebSocket sessions, PROXY headers, tokens and logins against running brokers, beside an
honest client.

  python -m tests.fuzz_server.run                                        100,000 frames, and 10,000 or more of each other kind
  python -m tests.fuzz_server.run --frames 1000000 --requests 1000000 --seed 7
  python -m tests.fuzz_server.run --frames 0 --requests 0 --sessions 50000
  python -m tests.fuzz_server.run --bug NAME                             a broker with a planted bug, see planted.py
  python -m tests.fuzz_server.run --keep DIR                             keeps the data and the log there

Frames, requests and sessions go to a broker with default settings and the WebSocket service, with keys and compression. Headers
and tokens go to a second broker, which expects PROXY headers, and tokens of an identity provider or of its own secret. Logins
to the console, and requests of all routes with credentials of all kinds, go to a third broker.

The number of requests includes WebSocket handshakes; that of logins counts their requests.

What must hold, whatever is sent: the broker lives and answers its health check, the honest client goes on and receives what it
sends, the broker logs no error, needs only so much memory and so many sockets, and answers every proper HTTP request with a
status that is no server's fault. What is sent follows from the seed. Exit code 1 when something does not hold.
"""

import argparse
import asyncio
import contextlib
import re
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz_server.attack import attack_with_frames
from tests.fuzz_server.edge_attacks import SecuredPorts, attack_with_headers, attack_with_sessions, attack_with_tokens
from tests.fuzz_server.honest import HonestClient
from tests.fuzz_server.http_attack import attack_with_requests
from tests.fuzz_server.login_attack import LoginTarget, attack_with_logins
from tests.fuzz_server.logins import HOST, PASSWORDS, SUPERUSER
from tests.fuzz_server.planted import BUGS, PLANTED
from tests.fuzz_server.tally import Tally
from tests.fuzz_server.tokens import ROLE, TokenMaker
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import (
    CertificateAuthority,
    data_url,
    htpasswd,
    private_pem,
    public_pem,
    rsa_key,
    secret_key,
    token,
)
from tests.support.identity_provider import IdentityProvider
from tests.support.rest import call, client_tls
from tests.support.secured import tls_settings

MOST_GROWTH_MB = 400
"""What the broker may need more at any time than before: what clients that do not read have asked for, topics, caches."""
MOST_SOCKETS_LEFT = 20
"""More sockets than before that may remain: connections of the broker's own clients."""
CLOSE_S = 20.0
"""How long the broker may take to close the connections of the attack."""
PREPARED = (
    ("PUT", "/tenants/fuzz", {"allowedClusters": ["standalone"]}),
    ("PUT", "/namespaces/fuzz/ns", None),
    ("PUT", "/persistent/fuzz/ns/parts/partitions", 3),
    ("PUT", "/tenants/acme", {"allowedClusters": ["standalone"]}),
    ("PUT", "/namespaces/acme/ns", None),
    ("PUT", "/persistent/public/default/t", None),
    ("PUT", "/persistent/public/default/parts/partitions", 2),
    ("PUT", "/persistent/public/default/t/subscription/s", "earliest"),
    ("PUT", "/tenants/websocket", {"allowedClusters": ["standalone"]}),
    ("PUT", "/namespaces/websocket/ns", None),
    ("PUT", "/namespaces/websocket/parts", None),
    ("PUT", "/persistent/websocket/parts/p/partitions", 3),
    ("PUT", "/tenants/honest", {"allowedClusters": ["standalone"]}),
    ("PUT", "/namespaces/honest/ns", None),
)


@dataclass(frozen=True)
class Counts:
    """How much of each kind is sent."""

    frames: int = 0
    requests: int = 0  # of HTTP, and handshakes of WebSocket sessions
    sessions: int = 0  # handshakes and frames of WebSocket sessions
    headers: int = 0
    tokens: int = 0
    logins: int = 0  # requests of logins, and of other routes with credentials


@dataclass
class Outcome:
    """Of one run."""

    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    honest_messages: int = 0
    honest_slowest_ms: float = 0.0
    usage: list[str] = field(default_factory=list)  # of each broker
    took_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for name, tally in self.tallies.items():
            yield from tally.lines(name)
        yield f"honest client: {self.honest_messages} messages, the slowest took {self.honest_slowest_ms:.0f} ms"
        yield from self.usage
        yield from (f"! {text}" for text in self.faults)


@dataclass
class Usage:
    """Memory and sockets of a broker before, during and after an attack."""

    before_mb: int = 0
    most_mb: int = 0
    after_mb: int = 0
    sockets_before: int = 0
    sockets_at_most: int = 0
    sockets_after: int = 0

    def __str__(self) -> str:
        return (
            f"memory: {self.before_mb} MB before, {self.most_mb} MB at most, {self.after_mb} MB after; "
            f"sockets: {self.sockets_before} before, {self.sockets_at_most} at most, {self.sockets_after} after"
        )


def run(directory: Path, counts: Counts, seed: int, connections: int = 48, bug: str = "") -> Outcome:
    """Attack fresh brokers, which nothing else uses. `bug`: the name of a planted bug."""
    outcome = Outcome()
    started_s = time.monotonic()
    if counts.frames or counts.requests or counts.sessions:
        keys = _made(directory / "keys")
        (keys / "app.public.pem").write_bytes(public_pem(rsa_key()))
        (keys / "app.private.pem").write_bytes(private_pem(rsa_key()))
        (keys / "bad.public.pem").write_text("no key")
        settings = {
            "webSocketServiceEnabled": "true",
            "webSocketCompressionEnabled": "true",
            "cryptoKeyReaderFactoryClassName": "files",
            "cryptoKeyDirectory": str(keys),
        }
        broker = BrokerProcess(_made(directory / "open"), settings)
        _run(broker, {}, bug, outcome, lambda: _attack(broker, outcome, counts, seed, connections))
    if counts.headers or counts.tokens:
        _run_secured(_made(directory / "secured"), counts, seed, connections, bug, outcome)
    if counts.logins:
        _run_with_logins(_made(directory / "console"), counts, seed, connections, bug, outcome)
    outcome.took_s = time.monotonic() - started_s
    outcome.faults += [fault for tally in outcome.tallies.values() for fault in tally.faults]
    return outcome


def _run_secured(directory: Path, counts: Counts, seed: int, connections: int, bug: str, outcome: Outcome) -> None:
    """Attack a broker that expects PROXY headers and tokens."""
    authority, secret = CertificateAuthority(directory), secret_key()
    with IdentityProvider("ES256").serving(authority.server()) as provider:
        settings = (
            provider.settings(authority.certificate_path)
            | tls_settings(authority)
            | {
                "authenticationProviders": "token,oidc",
                "tokenSecretKey": data_url(secret),
                "authorizationEnabled": "true",
                "superUserRoles": ROLE,
                "webSocketServiceEnabled": "true",
                "brokerClientAuthenticationPlugin": "token",
                "brokerClientAuthenticationParameters": f"token:{token(secret, sub=ROLE)}",
                "haProxyProtocolEnabled": "true",
                "webServiceHaProxyProtocolEnabled": "true",
                "connectCommandTimeoutMs": "2000",
            }
        )
        broker = BrokerProcess(directory, settings)
        own_token = token(secret, sub=ROLE)

        async def attack() -> None:
            ready = broker.ready
            plain, tls, http = (int(ready[name]) for name in ("broker_port", "broker_port_tls", "http_port"))
            ports = SecuredPorts("127.0.0.1", plain, tls, http, client_tls(authority.certificate_path))

            def tokens(random: Random) -> TokenMaker:
                return TokenMaker(random, provider, secret)

            await attack_with_headers(ports, tokens, counts.headers, seed, connections, outcome.tallies["headers"])
            await attack_with_tokens(
                ports, tokens, counts.tokens, seed, max(1, connections // 3), outcome.tallies["tokens"]
            )

        _run(broker, {"Authorization": f"Bearer {own_token}"}, bug, outcome, attack, own_token)


def _run_with_logins(directory: Path, counts: Counts, seed: int, connections: int, bug: str, outcome: Outcome) -> None:
    """Attack a broker whose users sign in to the console with OpenID Connect or with passwords."""
    authority, secret = CertificateAuthority(directory), secret_key()
    provider = IdentityProvider("ES256")
    provider.clients["console"], provider.lifetime_s = "secret of console", 12 * 3600.0
    with provider.serving(authority.server()):
        own_token = token(secret, sub=SUPERUSER)
        settings = provider.login_settings(authority.certificate_path, HOST, "console") | {
            "authenticationProviders": "token,oidc,basic",
            "tokenSecretKey": data_url(secret),
            "basicAuthConf": str(htpasswd(directory, **PASSWORDS)),
            "basicAuthMaxFailuresPerSecondPerIp": "1000",
            "consoleOpenIDMaxSessions": "100",
            "webSocketServiceEnabled": "true",
            "brokerClientAuthenticationPlugin": "token",
            "brokerClientAuthenticationParameters": f"token:{own_token}",
        }
        broker = BrokerProcess(directory, settings)
        headers = {"Authorization": f"Bearer {own_token}"}

        async def attack() -> None:
            target = LoginTarget(
                broker.http_url,
                call(f"{broker.http_url}/openapi.json", headers=headers).json,
                provider,
                lambda random: TokenMaker(random, provider, secret),
            )
            await attack_with_logins(target, counts.logins, seed, connections, outcome.tallies["logins"])

        _run(broker, headers, bug, outcome, attack, own_token)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _run(
    broker: BrokerProcess,
    headers: dict[str, str],
    bug: str,
    outcome: Outcome,
    attack: Callable[[], Coroutine[Any, Any, None]],
    honest_token: str = "",
) -> None:
    """Start the broker, attack it beside an honest client, and judge it."""
    broker.environment["PYTHONFAULTHANDLER"] = "1"
    if bug:
        broker.module = "tests.fuzz_server.planted"
        broker.environment[PLANTED] = bug
    broker.start()
    usage = Usage()
    try:
        for method, path, body in PREPARED:
            answer = call(f"{broker.http_url}/admin/v2{path}", method, body=body, headers=headers)
            assert answer.status < 300, (path, answer)
        honest = HonestClient(broker.url, honest_token)
        try:
            with watched(broker, usage):
                asyncio.run(attack())
        except OSError as error:
            outcome.faults.append(f"the broker does not answer: {error!r}; where it is: {_end_with_its_stack(broker)}")
        finally:
            honest.stop()
        outcome.honest_messages += honest.messages
        outcome.honest_slowest_ms = max(outcome.honest_slowest_ms, honest.slowest_ms)
        outcome.usage.append(str(usage))
        outcome.faults += [*honest.faults, *_judged(broker, usage, headers)]
    finally:
        broker.stop()


def _end_with_its_stack(broker: BrokerProcess) -> str:
    """A loop that is held up answers no SIGTERM; SIGABRT makes the interpreter write what it is doing."""
    assert broker.process is not None
    if broker.process.poll() is None:
        broker.process.send_signal(signal.SIGABRT)
        broker.process.wait()
    return broker.log.read_text(errors="replace")[-3000:]


async def _attack(broker: BrokerProcess, outcome: Outcome, counts: Counts, seed: int, connections: int) -> None:
    tallies, few = outcome.tallies, max(1, connections // 3)
    if counts.frames:
        await attack_with_frames(broker.url, counts.frames, seed, connections, tallies["frames"])
    if counts.sessions:
        await attack_with_sessions(broker.http_url, counts.sessions, seed, few, tallies["sessions"])
    if counts.requests:
        # The namespaces that frames go to are not those that requests take away.
        document = call(f"{broker.http_url}/openapi.json").json
        tally, handshakes = tallies["requests"], tallies["handshakes"]
        await attack_with_requests(broker.http_url, document, counts.requests, seed, connections, tally, handshakes)


@contextlib.contextmanager
def watched(broker: BrokerProcess, usage: Usage) -> Iterator[None]:
    """Follow the memory and the sockets of the broker. At the end, wait until the sockets of the attack are closed."""
    usage.before_mb = usage.most_mb = broker.resident_bytes() >> 20
    usage.sockets_before = usage.sockets_at_most = open_sockets(broker)
    is_over = threading.Event()

    def watch() -> None:
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
            while not is_over.wait(0.1):
                usage.most_mb = max(usage.most_mb, broker.resident_bytes() >> 20)
                usage.sockets_at_most = max(usage.sockets_at_most, open_sockets(broker))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        assert broker.process is not None
        deadline_s = time.monotonic() + CLOSE_S
        while broker.process.poll() is None:
            usage.after_mb = broker.resident_bytes() >> 20
            usage.sockets_after = open_sockets(broker)
            if usage.sockets_after <= usage.sockets_before + MOST_SOCKETS_LEFT or time.monotonic() > deadline_s:
                break
            time.sleep(0.1)


def open_sockets(broker: BrokerProcess) -> int:
    """Return the number of sockets of the broker (Linux only)."""
    count = 0
    for descriptor in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def _judged(broker: BrokerProcess, usage: Usage, headers: dict[str, str]) -> Iterator[str]:
    assert broker.process is not None
    if broker.process.poll() is not None:
        yield f"the broker ended with {broker.process.returncode}"
        return
    try:
        if (answer := call(f"{broker.http_url}/admin/v2/brokers/health", headers=headers)).text != "ok":
            yield f"the health check answers {answer}"
        metrics = call(f"{broker.http_url}/metrics/").text
    except OSError as error:
        yield f"the broker does not answer: {error!r}"
        return
    yield from (
        line for line in metrics.splitlines() if line.startswith("pybroker_bugs_total") and not line.endswith(" 0")
    )
    log = broker.log.read_text(errors="replace").splitlines()
    errors = [line for line in log if re.match(r"\S+ ERROR |\s*Traceback", line)]
    if errors:
        yield f"{len(errors)} errors in the log: {errors[0][:500]}"
    if usage.most_mb - usage.before_mb > MOST_GROWTH_MB:
        yield f"the broker needed {usage.most_mb - usage.before_mb} MB more than before"
    if usage.sockets_after > usage.sockets_before + MOST_SOCKETS_LEFT:
        yield f"{usage.sockets_after - usage.sockets_before} sockets remain open after the attack"


DEFAULT_COUNTS = {
    "frames": 100_000,
    "requests": 50_000,
    "sessions": 10_000,
    "headers": 10_000,
    "tokens": 10_000,
    "logins": 20_000,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz_server.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, count in DEFAULT_COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument("--bug", default="", choices=sorted(BUGS), help="a planted bug, which the run must find")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-server-")))
        counts = Counts(**{name: getattr(options, name) for name in DEFAULT_COUNTS})
        outcome = run(directory, counts, options.seed, options.connections, options.bug)
    print(f"seed {options.seed}, {outcome.took_s:.0f} s")
    for line in outcome.lines():
        print(line)
    return int(bool(outcome.faults))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the broker is stopped all the same
    sys.exit(main(sys.argv[1:]))
