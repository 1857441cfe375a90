"""Whatever answers, a command ends with a line: rubbish, redirections, refusals in any words."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Run, runner, without_a_broker

from pybroker.client.access import Access
from pybroker.client.rest import RestClient

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """An HTTP server whose every answer is `answer`'s; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_any(self) -> None:
            status, headers, body = answer(self)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nobody is to read it."""

    for method in ("GET", "POST", "PUT", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.do_any)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who asked does not read all of it
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Run:
    without_a_broker(monkeypatch, str(tmp_path))
    return runner(capsysbinary)


COMMANDS = (
    ["topics"],
    ["topics", "--long"],
    ["stats", "t", "--once"],
    ["subscriptions", "t"],
    ["peek", "t", "s"],
    ["explain", "t", "s"],
    ["unacked", "t", "s"],
    ["hash", "t", "s", "k"],
    ["holes", "t", "s"],
    ["ack", "t", "s", "1:2", "--yes"],
    ["skip", "t", "s", "--all", "--yes"],
    ["seek", "t", "s", "earliest", "--yes"],
    ["policies", "get", "t", "retention"],
    ["transactions", "list"],
    ["produce", "t", "x"],
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"x"',
        b"<html>not json</html>",
        b'{"partitions": "x"}',
        b"[1]",
        b'["\\u001b[2J"]',
        b"\xff",
    ],
)
def test_an_answer_that_is_no_brokers_is_a_line_and_no_trace(run: Run, body: bytes) -> None:
    with serving(lambda _: (200, {}, body)) as url:
        for command in COMMANDS:
            ran = run(*command, "--url", url)
            assert ran.code in {0, 1}, command
            assert ran.err.count("\n") == (1 if ran.code else 0), (command, ran.err)
            assert "\x1b" not in ran.out + ran.err


def test_a_refusal_in_any_words_is_one_line_that_only_prints(run: Run) -> None:
    for body in (json.dumps({"reason": "no\nway \x1b[2J" + "x" * 100_000}).encode(), b"<h1>no</h1>\n\n", b""):
        with serving(lambda _, body=body: (403, {}, body)) as url:  # type: ignore[misc]
            ran = run("topics", "--url", url)
        assert ran.code == 1
        assert ran.err.count("\n") == 1
        assert "\x1b" not in ran.err
        assert "answered 403" in ran.err
        assert len(ran.err) < 600


def test_a_broker_without_the_call_is_told_from_one_without_the_topic(run: Run) -> None:
    def answer(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        if request.path.endswith("/partitions"):
            return 200, {}, b'{"partitions": 0}'
        return 404, {}, b"<html><h2>HTTP ERROR 404 Not Found</h2></html>"

    with serving(answer) as url:
        ran = run("explain", "t", "s", "--url", url)
    assert "is not a pybroker broker" in ran.err
    assert "<" not in ran.err
    with serving(lambda _: (404, {}, b'{"reason": "Topic not found"}')) as url:
        assert "is not a pybroker" not in run("explain", "t", "s", "--url", url).err


def test_a_list_over_partitions_says_how_many_there_are_behind_its_limit(run: Run) -> None:
    def answer(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        if request.path.endswith("/partitions"):
            return 200, {}, b'{"partitions": 3}'
        return 200, {}, b'{"messages": [{"messageId": "1:0", "deliverAt": 1}], "total": 1, "next": null}'

    with serving(answer) as url:
        assert run("delayed", "t", "s", "--limit", "1", "--url", url).lines[-1] == "1 of 3: --limit shows more"
        assert run("delayed", "t", "s", "--limit", "2", "--json", "--url", url).json["total"] == 3


def test_a_redirection_leads_to_the_broker_that_serves_it_with_its_credentials(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_TOKEN", "the-token")
    seen: list[tuple[str, str | None]] = []

    def owner(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        seen.append((request.path, request.headers.get("authorization")))
        return 200, {}, b'{"partitions": 0}' if "/partitions?" in request.path else b'{"subscriptions": {}}'

    with (
        serving(owner) as there,
        serving(lambda r: (307, {"location": f"{there}{r.path}?authoritative=true"}, b"")) as url,
    ):
        assert run("subscriptions", "t", "--url", url).code == 0
    assert seen[0] == ("/admin/v2/persistent/public/default/t/partitions?authoritative=true", "Bearer the-token")


def test_when_the_broker_that_served_it_is_gone_the_address_that_was_given_is_asked_again() -> None:
    leads_to: list[str] = []

    def home(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        if leads_to:
            return 307, {"location": f"{leads_to[0]}{request.path}"}, b""
        return 200, {}, b'"again"'

    with serving(home) as url, contextlib.closing(RestClient(Access("", url), patience_s=5)) as rest:
        with serving(lambda _: (200, {"connection": "close"}, b'"there"')) as there:
            leads_to.append(there)
            assert rest.json("GET", "/topics") == "there"
            assert rest.where == there
        leads_to.clear()
        assert rest.json("GET", "/topics") == "again"
        assert rest.where == url


@pytest.mark.parametrize("location", ["", "ftp://x/", "/only/a/path", "http://[", "http://x:99999999/"])
def test_a_redirection_to_nowhere_is_told(run: Run, location: str) -> None:
    with serving(lambda _: (307, {"location": location}, b"")) as url:
        ran = run("topics", "--url", url)
    assert ran.code == 1
    assert "answered 307" in ran.err


def test_a_redirection_without_end_ends(run: Run) -> None:
    asked = []

    def again(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        asked.append(request.path)
        return 307, {"location": f"http://{request.headers['host']}{request.path}"}, b""

    with serving(again) as url:
        assert run("topics", "--url", url).code == 1
    assert len(asked) <= 10


def test_what_is_not_utf_8_is_wrong_usage(run: Run) -> None:
    ran = run("stats", "t\udcff", "--once")
    assert (ran.code, ran.err) == (
        2,
        "pybroker: an argument is not valid UTF-8: check the encoding of the terminal or script\n",
    )


def test_a_bug_is_a_line_and_with_a_variable_its_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda _: (200, {}, b"[1]")) as url:
        ran = run("topics", "--url", url)
        assert "this is a bug, or the server is not a Pulsar broker. Set PYBROKER_DEBUG=1" in ran.err
        monkeypatch.setenv("PYBROKER_DEBUG", "1")
        with pytest.raises(TypeError):
            run("topics", "--url", url)


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "{url}", "topics"),
        ("--url={url}", "topics"),
        ("--url", "http://127.0.0.1:1", "topics", "--url", "{url}"),
        ("--profile", "topics", "topics"),
        ("--tls-allow-insecure", "--timeout", "5s", "--admin-url", "{url}", "topics"),
    ],
)
def test_connection_options_count_before_and_after_the_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with serving(lambda _: (200, {}, b"[]")) as url:
        (tmp_path / "profiles.toml").write_text(f'[profiles.topics]\nurl = "{url}"\n')
        monkeypatch.setenv("PYBROKER_PROFILES", str(tmp_path / "profiles.toml"))
        ran = run(*(word.format(url=url) for word in words))
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--url", "http://127.0.0.1:1", "tokens", "create-secret-key"), "it has no option --url"),
        (("--token", "s3cret", "topics"), "a secret would stay in the shell's history"),
        (("--nosuch", "topics"), "unknown option --nosuch"),
        (("--url", "http://127.0.0.1:1"), "arguments are required"),
        (("--url",), "expected one argument"),
    ],
)
def test_wrong_options_before_the_command_are_one_line(run: Run, words: tuple[str, ...], complaint: str) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert complaint in ran.err
    assert ran.err.count("\n") == 1
    assert "s3cret" not in ran.err
