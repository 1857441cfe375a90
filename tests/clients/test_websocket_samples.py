"""The samples of docs/how-to/websocket.md, run against a broker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.tutorials import BLOCK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "websocket.md"
TIMEOUT_S = 60
NODE = shutil.which("node")
JAVA = shutil.which("java")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory with the programs of the page, which use a running broker."""
    directory = tmp_path_factory.mktemp("samples")
    settings = {"webSocketServiceEnabled": "true"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running_well() as process:
        url = str(process.ready["http_url"]).replace("http:", "ws:")
        for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
            if block["title"]:
                (directory / block["title"]).write_text(block["text"].replace("ws://localhost:8080", url))
        yield directory


def program(*command: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    return out.strip()


def test_python_samples_publish_receive_and_read(samples: Path) -> None:
    subscribed = program(sys.executable, samples / "consumer.py")
    published = ""
    while subscribed.poll() is None:  # the consumer may subscribe after the first message
        published = output(program(sys.executable, samples / "producer.py"))
    assert published == "stored"
    assert output(subscribed) == "received Hello World"
    assert output(program(sys.executable, samples / "reader.py")) == "read Hello World"


@pytest.mark.skipif(NODE is None, reason="needs Node.js 20 or newer")
def test_javascript_sample_publishes_and_receives(samples: Path) -> None:
    assert NODE is not None
    lines = output(program(NODE, "--experimental-websocket", samples / "publish-and-receive.mjs")).splitlines()
    assert sorted(lines) == ["received Hello World", "stored ok"]


@pytest.mark.java
@pytest.mark.skipif(JAVA is None, reason="needs Java 11 or newer")
def test_java_sample_publishes(samples: Path) -> None:
    assert JAVA is not None
    answer = output(program(JAVA, "-XX:TieredStopAtLevel=1", samples / "Publish.java"))
    assert json.loads(answer)["result"] == "ok"
