"""Commands against a real broker: what they write, how they end, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import until
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.commands import Run, runner, without_a_broker
from tests.support.credentials import CertificateAuthority
from tests.support.rest import call
from tests.support.secured import PROVIDERS, tls_settings

from pybroker.cli import main
from pybroker.embedding import BrokerThread, embed_in_thread


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """One for all tests here; each has topics of its own."""
    with embed_in_thread() as embedded:
        yield embedded


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_broker(monkeypatch, str(tmp_path / "none"))


@pytest.fixture
def run(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command in this process; what was written before is forgotten."""
    monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)
    return runner(capsysbinary)


# --- produce and consume ---------------------------------------------------------------------------------------------


def test_what_is_produced_is_consumed_acknowledged_and_gone(run: Run) -> None:
    made = run("produce", "orders", "one", "two", "--key", "k", "--property", "source=shell")
    assert made.code == 0
    assert made.out.startswith("2 messages stored in persistent://public/default/orders; the last message is ")
    first = run("consume", "orders", "-s", "s", "--from", "earliest", "-n", "1", "--no-ack", "--json")
    assert (first.code, first.json["value"], first.json["key"], first.json["properties"]) == (
        0,
        "one",
        "k",
        {"source": "shell"},
    )
    taken = run("consume", "orders", "-s", "s", "-n", "2", "--json")
    assert taken.values == ["one", "two"]
    assert json.loads(taken.lines[0])["messageId"] == first.json["messageId"]
    rest = run("consume", "orders", "-s", "s", "-n", "1", "--wait", "100ms")
    assert (rest.code, rest.out) == (4, "")
    assert run("consume", "orders", "-s", "s", "--wait", "100ms").code == 0


def test_reading_leaves_nothing_behind_and_starts_where_it_is_told(run: Run) -> None:
    ids = [
        json.loads(line)["messageId"] for line in run("produce", "read", "a", "b", "c", "--no-batching", "--json").lines
    ]
    assert run("consume", "read", "--until-end", "--json").values == ["a", "b", "c"]
    assert run("consume", "read", "--from", ids[1], "--until-end", "--json").values == ["b", "c"]
    assert run("consume", "read", "--from", "2020-01-01T00:00:00Z", "-n", "3", "--json").values == ["a", "b", "c"]
    assert run("consume", "read", "--from", "latest", "--until-end").out == ""
    assert run("subscriptions", "read").out == "No subscriptions.\n"


def test_files_lines_and_keys_become_messages(run: Run, tmp_path: Path) -> None:
    binary, lines, nulls = tmp_path / "binary", tmp_path / "lines", tmp_path / "nulls"
    binary.write_bytes(bytes(range(256)))
    lines.write_bytes(b"k1:one\nk2:two:more\nk3:")
    nulls.write_bytes(b"with\nline feed\0last\0")
    assert run("produce", "files", "--file", str(binary), "--compression", "zstd").code == 0
    assert run("produce", "files", "--lines", str(lines), "--key-separator", ":").code == 0
    assert run("produce", "files", "--lines", str(nulls), "--null", "--batch-by-key").code == 0
    documents = run("consume", "files", "--until-end", "--json").records
    assert credentials.base64.b64decode(documents[0]["valueBase64"]) == bytes(range(256))  # type: ignore[attr-defined]
    assert [(each.get("key"), each["value"]) for each in documents[1:]] == [
        ("k1", "one"),
        ("k2", "two:more"),
        ("k3", ""),
        (None, "with\nline feed"),
        (None, "last"),
    ]


def test_a_topic_goes_through_json_lines_into_another_one_unchanged(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text(
        '{"value": "x", "key": "k", "properties": {"a": "b"}, "eventTime": 5}\n'
        '{"valueBase64": "/w==", "keyBase64": "/w=="}\n{"value": null, "key": "gone"}\n{"value": {"a": 1}}\n'
    )
    assert run("produce", "from", "--lines", str(source), "--json-lines").code == 0
    read = run("consume", "from", "--until-end", "--json")
    copied = tmp_path / "copied.jsonl"
    copied.write_text(read.out)
    assert run("produce", "to", "--lines", str(copied), "--json-lines").code == 0
    members = ("key", "keyBase64", "value", "valueBase64", "properties", "eventTime")
    before, after = (
        [{name: json.loads(line).get(name) for name in members} for line in ran.lines]
        for ran in (read, run("consume", "to", "--until-end", "--json"))
    )
    assert before == after
    assert before[1]["keyBase64"] == "/w=="
    assert before[2]["value"] is None


def test_values_are_written_as_they_are(run: Run, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"\xff\n\x00")
    run("produce", "values", "--file", str(tmp_path / "v"))
    for option, end in (((), b"\n"), (("--null",), b"\0"), (("--no-newline",), b"")):
        assert main(["consume", "values", "-n", "1", "--values", *option]) == 0
        assert capsysbinary.readouterr().out == b"\xff\n\x00" + end


def test_a_line_that_is_no_message_ends_the_run_and_what_was_before_it_is_stored(run: Run, tmp_path: Path) -> None:
    (tmp_path / "l").write_text('{"value": "good"}\nbad\n{"value": "never"}\n')
    ran = run("produce", "half", "--lines", str(tmp_path / "l"), "--json-lines")
    assert ran.code == 1
    assert ran.out.startswith("1 message stored")
    assert ran.err == (
        "pybroker: line 2 of the input is not a valid message: the line is not JSON, which --json-lines requires\n"
    )
    assert run("consume", "half", "--until-end", "--json").values == ["good"]


def test_what_the_broker_refuses_is_told_and_counted(run: Run, broker: BrokerThread) -> None:
    ran = run("produce", "large", "--no-batching", "--file", "/dev/null", "x" * 6_000_000)
    assert ran.code == 1
    assert ran.err.count("\n") == 2
    assert "1 message not stored" in ran.err
    call(f"{broker.admin_url}/admin/v2/persistent/public/default/ended", "PUT")
    call(f"{broker.admin_url}/admin/v2/persistent/public/default/ended/terminate", "POST")
    ran = run("produce", "ended", "x")
    assert ran.code == 1
    assert "erminated" in ran.err
    assert run("consume", "ended", "-s", "s").code == 0  # there is nothing, and there will be nothing


def test_partitions_are_consumed_peeked_and_listed_together(run: Run, broker: BrokerThread) -> None:
    call(f"{broker.admin_url}/admin/v2/persistent/public/default/parts/partitions", "PUT", body=3)
    call(f"{broker.admin_url}/admin/v2/persistent/public/default/parts/subscription/s", "PUT", body={})
    for number in range(9):
        run("produce", "parts", str(number), "--key", str(number))
    peeked = run("peek", "parts", "s", "-n", "9", "--json")
    read = run("consume", "parts", "--until-end", "--json")
    assert sorted(peeked.values) == sorted(read.values) == [str(number) for number in range(9)]
    assert len({json.loads(line)["messageId"].split(":")[2] for line in read.lines}) > 1
    listed = run("topics", "--long", "--json").json
    (found,) = [each for each in listed if each["topic"].endswith("/parts")]
    assert (found["partitions"], found["subscriptions"], found["msgBacklog"]) == (3, 1, 9)
    assert run("subscriptions", "parts", "--json").json[0]["msgBacklog"] == 9
    assert run("ack", "parts", "s", "1:1", "--yes").code == 2  # of which partition?


# --- looking ---------------------------------------------------------------------------------------------------------


def test_peek_shows_each_message_of_a_batch_and_takes_nothing(run: Run) -> None:
    run("consume", "peeked", "-s", "s", "-n", "1", "--wait", "1ms")
    (ids,) = [run("produce", "peeked", "a", "b", "--key", "k", "--property", "p=q", "--json").lines]
    for _ in range(2):
        lines = run("peek", "peeked", "s", "-n", "5", "--json").lines
        documents = [json.loads(line) for line in lines]
        assert [each["value"] for each in documents] == ["a", "b"]
        assert [each["messageId"] for each in documents] == [json.loads(line)["messageId"] for line in ids]
        assert all(each["key"] == "k" and each["properties"] == {"p": "q"} for each in documents)
    assert run("peek", "peeked", "s").out.endswith("  k  {p=q}  a\n")
    run("consume", "peeked", "-s", "s", "-n", "2")
    assert run("peek", "peeked", "s").out == "No unacknowledged messages.\n"
    unknown = run("peek", "peeked", "nosuch")
    assert unknown.code == 1
    assert "Subscription nosuch not found for topic persistent://public/default/peeked" in unknown.err
    assert not unknown.out


def test_topics_are_listed_by_namespace_and_by_tenant(run: Run, broker: BrokerThread) -> None:
    call(f"{broker.admin_url}/admin/v2/namespaces/public/other", "PUT", body={})
    run("produce", "public/other/there", "x")
    assert run("topics", "public/other").lines[1].split() == ["persistent://public/other/there", "-"]
    assert "persistent://public/other/there" in run("topics", "public").out
    assert run("topics", "public/empty").code == 1
    long = run("topics", "public/other", "--long").lines
    assert long[0].split() == [
        "TOPIC",
        "PARTITIONS",
        "IN/S",
        "OUT/S",
        "PRODUCERS",
        "SUBS",
        "BACKLOG",
        "SIZE",
        "STUCK",
    ]


def test_stats_shows_producers_subscriptions_and_consumers(run: Run, broker: BrokerThread) -> None:
    run("consume", "watched", "-s", "s", "-n", "1", "--wait", "1ms")
    run("produce", "watched", "x")
    ran = run("stats", "watched", "--once")
    assert ran.lines[0] == "persistent://public/default/watched"
    assert [line.split()[0] for line in ran.lines[3:]] == ["SUBSCRIPTION", "s"]
    assert run("stats", "watched", "--once", "--json").json["subscriptions"]["s"]["msgBacklog"] == 1
    run("produce", "watched-too", "x")
    two = run("stats", "watched", "watched-too", "--once")
    assert len(two.lines) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["stats", "nosuch", "--once"], 1, "answered 404"),
        (["topics", "no/such"], 1, "answered 404"),
        (["peek", "nosuch", "s"], 1, "answered 404"),
        (["subscriptions", "a/b"], 2, "invalid short topic name"),
        (["consume", "a", "b"], 2, "only one topic can be read without a subscription"),
        (["consume", "a", "-s", "s", "--until-end"], 2, "use --wait"),
        (["consume", "a", "-s", "s", "--from", "1:2"], 2, "earliest or latest"),
        (["consume", "a", "--no-ack"], 2, "add --subscription"),
        (["consume", "a", "--values", "--json"], 2, "--values and --json exclude"),
        (["consume", "a", "--null"], 2, "work only with --values"),
        (["produce", "a", "x", "--json-lines"], 2, "work only when each line is a message"),
        (["produce", "a", "--json-lines", "--key", "k"], 2, "each line contains its own key"),
        (["produce", "a", "--file", "/no/such"], 1, "cannot read /no/such: No such file"),
        (["produce", "a", "--lines", "/no/such"], 1, "cannot read /no/such: No such file"),
        (["explain", "a", "--key", "k"], 2, "need a subscription"),
        (["explain", "a", "s", "--producer", "p"], 2, "remove the subscription"),
        (["explain", "a", "s", "--id", "x"], 2, "not a message id"),
        (["redeliver", "a", "s", "1:2:3"], 2, "works only on whole batches"),
        (["disconnect", "a", "--consumer", "c"], 2, "--consumer needs the subscription"),
        (["disconnect", "a", "s", "--producer", "p"], 2, "--producer cannot be used with a subscription"),
        (["topics", "--url", "http://127.0.0.1:1"], 1, "Check that a broker is running there"),
        (["topics", "--token-file", "/no/such"], 1, "/no/such cannot be read"),
        (
            ["produce", "a", "x", "--service-url", "pulsar://127.0.0.1:1", "--timeout", "1"],
            1,
            "set another address with --service-url",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_a_code(run: Run, arguments: list[str], code: int, said: str) -> None:
    ran = run(*arguments)
    assert ran.code == code
    assert said in ran.err
    lines = [line for line in ran.err.splitlines() if not line.endswith("not stored")]
    assert len(lines) == 1
    assert not ran.out or ran.out.startswith("0 messages stored")


# --- processes of their own: signals and pipes -----------------------------------------------------------------------


def started(broker: BrokerThread, *arguments: str, **pipes: Any) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PULSAR_ADMIN_URL": broker.admin_url}
    command = [sys.executable, "-m", "pybroker", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **pipes)


def test_a_signal_ends_a_consumer_cleanly_with_what_it_wrote_acknowledged(run: Run, broker: BrokerThread) -> None:
    run("produce", "signalled", "one", "two")
    process = started(broker, "consume", "signalled", "-s", "s", "--from", "earliest", "--json")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    assert [json.loads(line)["value"] for line in lines] == ["one", "two"]
    until(lambda: run("subscriptions", "signalled", "--json").json[0]["msgBacklog"] == 0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")
    assert run("subscriptions", "signalled", "--json").json[0]["consumers"] == 0


def test_a_signal_ends_a_producer_with_what_it_read_stored(run: Run, broker: BrokerThread) -> None:
    process = started(broker, "produce", "piped", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nhalf a line")
    process.stdin.flush()
    until(lambda: run("consume", "piped", "--until-end", "--json").lines[1:] != [])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143  # while there could still come more
    out, err = process.communicate()
    assert out.startswith(b"2 messages stored")
    assert err == b""
    assert run("consume", "piped", "--until-end", "--json").values == ["one", "two"]


def test_nobody_reading_the_output_ends_a_command_quietly_and_acknowledges_nothing_more(
    run: Run, broker: BrokerThread, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("".join(f"{'x' * 1000}{number}\n" for number in range(1000)))
    run("produce", "unread", "--lines", str(tmp_path / "lines"), "--no-batching")
    process = started(broker, "consume", "unread", "-s", "s", "--from", "earliest", "--values")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=20) == 141
    assert run("subscriptions", "unread", "--json").json[0]["msgBacklog"] > 500


# --- who one is ------------------------------------------------------------------------------------------------------


def test_with_tls_and_authentication_a_profile_is_all_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = runner(capsysbinary)
    assert run("tokens", "create-secret-key", "--output", str(tmp_path / "secret.key")).code == 0
    for role in ("admin", "nobody"):
        output = str(tmp_path / f"{role}.jwt")
        made = run("tokens", "create", "-sk", str(tmp_path / "secret.key"), "-s", role, "-e", "1h", "-o", output)
        assert made.code == 0
    token = (tmp_path / "admin.jwt").read_text().strip()
    authority = CertificateAuthority(tmp_path)
    settings = {
        **tls_settings(authority),
        "authenticationEnabled": "true",
        "authenticationProviders": PROVIDERS,
        "tokenSecretKey": f"file://{tmp_path}/secret.key",
        "basicAuthConf": str(credentials.htpasswd(tmp_path, admin="pass word")),
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
    }
    directory = tmp_path / "broker"
    directory.mkdir()
    with BrokerProcess(directory, settings).running_well() as process:
        certificate = authority.client("admin")
        (tmp_path / "password").write_text("pass word\n")
        profiles = tmp_path / "profiles.toml"
        base = f'url = "{process.ready["http_url_tls"]}"\ntls_trust_certs_file = "{authority.certificate_path}"\n'
        profiles.write_text(
            'default = "token"\n'
            f'[profiles.token]\n{base}token_file = "admin.jwt"\n'
            f'[profiles.basic]\n{base}basic_user = "admin"\nbasic_password_file = "password"\n'
            f'[profiles.tls]\n{base}tls_certificate_file = "{certificate.certificate}"\ntls_key_file = "{certificate.key}"\n'
            f'[profiles.nobody]\n{base}token_file = "nobody.jwt"\n'
            f"[profiles.anonymous]\n{base}"
            f'[profiles.distrusting]\nurl = "{process.ready["http_url_tls"]}"\ntoken_file = "admin.jwt"\n'
        )
        monkeypatch.setenv("PYBROKER_PROFILES", str(profiles))
        said = ""
        for way in ("token", "basic", "tls"):
            assert run("produce", "t", way, "--profile", way).code == 0, way
        assert run("consume", "t", "--until-end", "--json").values == ["token", "basic", "tls"]
        for profile, complaint in (
            ("nobody", "answered 401"),
            ("anonymous", "(profile anonymous); give credentials"),
            ("distrusting", "is not trusted"),
        ):
            refused = run("stats", "t", "--once", "--profile", profile)
            assert refused.code == 1
            assert complaint in refused.err
            assert refused.err.count("\n") == 1
            said += refused.err
        # Without a profile: all of it by options and the environment, over plain ports.
        monkeypatch.setenv("PULSAR_TOKEN", token)
        assert run("topics", "--url", process.http_url).code == 0
        refused = run("produce", "t", "x", "--url", process.http_url, "--token-file", str(tmp_path / "nobody.jwt"))
        assert refused.code == 1
        assert token not in said + refused.err + process.log.read_text()
        assert "pass word" not in said + process.log.read_text()
