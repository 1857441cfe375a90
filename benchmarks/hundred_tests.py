"""Duration of a hundred small tests with the embedded broker, and with a real one.

    python -m benchmarks.hundred_tests [--pulsar-url URL --pulsar-admin-url URL]

Each test publishes and receives a message on its own topic. The start of the embedded broker and of pytest counts.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = 100
SUITE = f"""
import pulsar
import pytest


@pytest.fixture(scope="session")
def client(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.mark.parametrize("number", range({TESTS}))
def test_a_message_arrives(client, pulsar_broker, received, number):
    topic = pulsar_broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"%d" % number)
    assert received(consumer)[0].data() == b"%d" % number
    producer.close()
    consumer.close()
"""


def seconds(arguments: list[str]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "test_suite.py").write_text(SUITE)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", *arguments]
        began_s = time.perf_counter()
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - began_s
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return took_s


def main() -> None:
    real = sys.argv[1:]
    seconds([])  # warm-up: compiles the modules
    embedded_s = seconds([])
    print(f"embedded  {TESTS} tests in {embedded_s:.2f} s, load {os.getloadavg()[0]:.1f}")
    if real:
        seconds(real)
        real_s = seconds(real)
        print(f"real      {TESTS} tests in {real_s:.2f} s, {real_s / embedded_s:.1f} times as long")


if __name__ == "__main__":
    main()
