"""The same commands against this broker and Apache Pulsar write the same; keys and tokens go to and from Pulsar's tool."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Ran, Run, runner, without_a_broker
from tests.support.reference import reference_broker
from tests.support.rest import call

from pybroker.embedding import embed_in_thread

pytestmark = [pytest.mark.long, pytest.mark.java]
CHANGING = ("messageId", "publishTime", "producer", "storageSize", "msgRateIn", "msgRateOut", "messageAckRate")
"""What no two brokers say alike: places, times, names that a broker gives, rates, bytes on its disk."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Run:
    without_a_broker(monkeypatch, str(tmp_path))
    return runner(capsysbinary)


def settled(document: Any) -> Any:
    """Without what changes from broker to broker."""
    if isinstance(document, list):
        return [settled(each) for each in document]
    if isinstance(document, dict):
        return {name: settled(value) for name, value in document.items() if name not in CHANGING}
    return document


def walk(run: Run, url: str, directory: Path) -> list[Any]:
    """What a row of commands writes, and how they end."""
    seen: list[Any] = []

    def do(*arguments: str, take: Callable[[Ran], Any] = lambda ran: ran.records) -> Ran:
        ran = run(*arguments, "--url", url)
        seen.append((" ".join(arguments), ran.code, settled(take(ran))))
        return ran

    lines = directory / "lines.jsonl"
    lines.write_text(
        '{"value": "one", "key": "k", "properties": {"a": "b"}, "eventTime": 1000}\n{"valueBase64": "/w==", "keyBase64": "/w=="}\n'
        '{"value": null, "key": "gone"}\n'
    )
    call(f"{url}/admin/v2/persistent/public/default/parts/partitions", "PUT", body=2)
    do("consume", "t", "-s", "s", "-n", "1", "--wait", "10ms")
    do("produce", "t", "--lines", str(lines), "--json-lines", "--json")
    do("produce", "t", "a", "b", "--no-batching", "--compression", "lz4", "--json")
    do("peek", "t", "s", "-n", "9", "--json")
    do("subscriptions", "t", "--json", take=lambda ran: ran.json)
    do("consume", "t", "-s", "s", "-n", "5", "--json")
    do("peek", "t", "s", take=lambda ran: ran.out)
    do("subscriptions", "t", "--json", take=lambda ran: ran.json)
    do("consume", "t", "--until-end", "--json")
    do("consume", "t", "--from", "2020-01-01T00:00:00Z", "-n", "5", "--json")
    for number in range(4):
        do("produce", "parts", str(number), "--key", str(number), "--json")
    do("consume", "parts", "--until-end", "--json", take=lambda ran: sorted(ran.values))
    do(
        "consume",
        "parts",
        "-s",
        "s",
        "-t",
        "key_shared",
        "--from",
        "earliest",
        "-n",
        "4",
        "--json",
        take=lambda ran: sorted(ran.values),
    )
    do("subscriptions", "parts", "--json", take=lambda ran: ran.json)
    do(
        "topics",
        "--long",
        "--json",
        take=lambda ran: [without_findings(each) for each in ran.json if each["topic"].endswith(("/t", "/parts"))],
    )
    do(
        "topics",
        "public",
        "--json",
        take=lambda ran: [each for each in ran.json if each["topic"].endswith(("/t", "/parts"))],
    )
    stats = ("msgInCounter", "publishers")
    do("stats", "t", "--once", "--json", take=lambda ran: {name: ran.json[name] for name in stats})
    do("stats", "t", "--once", take=lambda ran: [ran.lines[0], ran.lines[3].split()])
    for missing in (["stats", "nosuch", "--once"], ["peek", "t", "nosuch"], ["topics", "no/such"]):
        do(*missing, take=lambda ran: ran.err.count("\n"))
    return seen


def without_findings(topic: dict[str, Any]) -> dict[str, Any]:
    """The row of a topic as any broker fills it: Pulsar does not report what is stuck."""
    return {name: value for name, value in topic.items() if name != "stuck"}


def test_commands_write_the_same_for_this_broker_and_for_pulsar(run: Run, tmp_path: Path) -> None:
    with embed_in_thread() as own:
        here = walk(run, own.admin_url, tmp_path)
    with reference_broker({}) as reference:
        there = walk(run, reference.http_url, tmp_path)
    for ours, theirs in zip(here, there, strict=True):
        assert ours == theirs


def pulsar_tokens(*arguments: str) -> str:
    """What Pulsar's own tool writes."""
    home = Path(os.environ.get("PULSAR_BASELINE_HOME", Path.home() / ".cache/pulsar-baseline"))
    if shutil.which("java") is None or not (home / "server/cp.txt").exists():
        pytest.skip(f"Pulsar's tool needs Java 17 on the PATH and its jars in {home}")
    tool = ["-cp", (home / "server/cp.txt").read_text().strip(), "org.apache.pulsar.utils.auth.tokens.TokensCliUtils"]
    done = subprocess.run(
        ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", *tool, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_keys_and_tokens_go_to_and_from_pulsars_tool(run: Run, tmp_path: Path) -> None:
    def at(name: str) -> str:
        return str(tmp_path / name)

    pulsar_tokens("create-secret-key", "--output", at("theirs.key"))
    (tmp_path / "theirs.jwt").write_text(
        pulsar_tokens("create", "-sk", f"file://{at('theirs.key')}", "-s", "alice", "-e", "1h")
    )
    validated = run("tokens", "validate", "-sk", at("theirs.key"), "-f", at("theirs.jwt"))
    assert (validated.code, validated.lines[1].split(",")[0]) == (0, "valid: role alice")
    assert run("tokens", "show", "-f", at("theirs.jwt")).out.strip() == pulsar_tokens("show", "-f", at("theirs.jwt"))

    pair = ["--output-private-key", at("private"), "--output-public-key", at("public")]
    assert run("tokens", "create-key-pair", "-a", "ES256", *pair).code == 0
    assert run("tokens", "create", "-pk", at("private"), "-s", "bob", "-o", at("ours.jwt")).code == 0
    theirs = pulsar_tokens("validate", "-a", "ES256", "-pk", f"file://{at('public')}", "-f", at("ours.jwt"))
    assert (
        theirs
        == "{sub=bob}"
        == run("tokens", "validate", "-a", "ES256", "-pk", at("public"), "-f", at("ours.jwt")).lines[0]
    )
