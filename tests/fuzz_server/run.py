"""Hostile frames and HTTP requests against a running broker, with an honest client beside them.

  python -m tests.fuzz_server.run                                        100,000 frames and 10,000 requests
  python -m tests.fuzz_server.run --frames 1000000 --requests 100000 --seed 7
  python -m tests.fuzz_server.run --keep DIR                             keeps the data and the log there

What must hold, whatever is sent: the broker lives and answers its health check, the honest client goes on and receives what it
sends, the broker logs no error, needs only so much memory, and answers every proper HTTP request with a status that is no server's
fault. What is sent follows from the seed. Exit code 1 when something does not hold.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz_server.attack import attack_with_frames, attack_with_requests
from tests.fuzz_server.honest import HonestClient
from tests.fuzz_server.tally import Tally
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

MOST_GROWTH_MB = 400
"""What the broker may need more at any time than before: what clients that do not read have asked for, topics, caches."""
PREPARED = (
    ("PUT", "/tenants/fuzz", {"allowedClusters": ["standalone"]}),
    ("PUT", "/namespaces/fuzz/ns", None),
    ("PUT", "/persistent/fuzz/ns/parts/partitions", 3),
    ("PUT", "/tenants/acme", {"allowedClusters": ["standalone"]}),
    ("PUT", "/namespaces/acme/ns", None),
    ("PUT", "/persistent/public/default/t", None),
    ("PUT", "/persistent/public/default/parts/partitions", 2),
    ("PUT", "/persistent/public/default/t/subscription/s", "earliest"),
    ("PUT", "/tenants/honest", {"allowedClusters": ["standalone"]}),
    ("PUT", "/namespaces/honest/ns", None),
)


@dataclass
class Outcome:
    """Of one run."""

    frames: Tally = field(default_factory=Tally)
    requests: Tally = field(default_factory=Tally)
    honest_messages: int = 0
    honest_slowest_ms: float = 0.0
    resident_mb: tuple[int, int, int] = (0, 0, 0)  # before, most, after
    took_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield from self.frames.lines("frames")
        yield from self.requests.lines("requests")
        yield f"honest client: {self.honest_messages} messages, the slowest took {self.honest_slowest_ms:.0f} ms"
        yield "memory: {} MB before, {} MB at most, {} MB after".format(*self.resident_mb)
        yield from (f"! {text}" for text in self.faults)


def run(directory: Path, frames: int, requests: int, seed: int, connections: int = 48) -> Outcome:
    """On a fresh broker that nobody else uses."""
    broker, outcome = BrokerProcess(directory), Outcome()
    broker.environment["PYTHONFAULTHANDLER"] = "1"
    broker.start()
    try:
        for method, path, body in PREPARED:
            answer = call(f"{broker.http_url}/admin/v2{path}", method, body=body)
            assert answer.status < 300, (path, answer)
        honest = HonestClient(broker.url)
        started_s = time.monotonic()
        try:
            with watched_memory(broker, outcome):
                asyncio.run(_attack(broker, outcome, frames, requests, seed, connections))
        except OSError as error:
            outcome.faults.append(f"the broker does not answer: {error!r}; where it is: {_end_with_its_stack(broker)}")
        finally:
            honest.stop()
        outcome.took_s = time.monotonic() - started_s
        outcome.honest_messages, outcome.honest_slowest_ms = honest.messages, honest.slowest_ms
        outcome.faults += [*outcome.frames.faults, *outcome.requests.faults, *honest.faults, *_judged(broker, outcome)]
    finally:
        broker.stop()
    return outcome


def _end_with_its_stack(broker: BrokerProcess) -> str:
    """A loop that is held up answers no SIGTERM; SIGABRT makes the interpreter write what it is doing."""
    assert broker.process is not None
    if broker.process.poll() is None:
        broker.process.send_signal(signal.SIGABRT)
        broker.process.wait()
    return broker.log.read_text(errors="replace")[-3000:]


async def _attack(
    broker: BrokerProcess, outcome: Outcome, frames: int, requests: int, seed: int, connections: int
) -> None:
    await attack_with_frames(broker.url, frames, seed, connections, outcome.frames)
    # The namespaces that frames go to are not those that requests take away.
    document = call(f"{broker.http_url}/openapi.json").json
    await attack_with_requests(broker.http_url, document, requests, seed, max(1, connections // 3), outcome.requests)


@contextlib.contextmanager
def watched_memory(broker: BrokerProcess, outcome: Outcome) -> Iterator[None]:
    before_mb = most_mb = broker.resident_bytes() >> 20
    is_over = threading.Event()

    def watch() -> None:
        nonlocal most_mb
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
            while not is_over.wait(0.1):
                most_mb = max(most_mb, broker.resident_bytes() >> 20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        assert broker.process is not None
        after_mb = broker.resident_bytes() >> 20 if broker.process.poll() is None else 0
        outcome.resident_mb = (before_mb, most_mb, after_mb)


def _judged(broker: BrokerProcess, outcome: Outcome) -> Iterator[str]:
    assert broker.process is not None
    if broker.process.poll() is not None:
        yield f"the broker ended with {broker.process.returncode}"
        return
    try:
        if (answer := call(f"{broker.http_url}/admin/v2/brokers/health")).text != "ok":
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
    before_mb, most_mb, _ = outcome.resident_mb
    if most_mb - before_mb > MOST_GROWTH_MB:
        yield f"the broker needed {most_mb - before_mb} MB more than before"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz_server.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-server-")))
        directory.mkdir(parents=True, exist_ok=True)
        outcome = run(directory, options.frames, options.requests, options.seed, options.connections)
    print(f"seed {options.seed}, {outcome.took_s:.0f} s")
    for line in outcome.lines():
        print(line)
    return int(bool(outcome.faults))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the broker is stopped all the same
    sys.exit(main(sys.argv[1:]))
