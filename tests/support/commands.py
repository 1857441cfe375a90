"""Runs `pybroker` commands within a test and records their output."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from pybroker.cli import main


class Ran(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def records(self) -> list[Any]:
        """Parse stdout as JSON lines."""
        return [json.loads(line) for line in self.lines]

    @property
    def values(self) -> list[str]:
        """Return the values of messages printed as JSON lines."""
        return [record["value"] for record in self.records]


Run = Callable[..., Ran]


def runner(capture: pytest.CaptureFixture[bytes]) -> Run:
    """Return a function that runs a command in this process. Earlier output is discarded."""

    def run(*arguments: str) -> Ran:
        capture.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        written = capture.readouterr()
        return Ran(code, written.out.decode(), written.err.decode())

    return run


def without_a_broker(monkeypatch: pytest.MonkeyPatch, nowhere: str) -> None:
    """Remove all settings of the machine that select a broker."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", nowhere)


PLACES = (
    "PULSAR_ADMIN_URL",
    "PULSAR_SERVICE_URL",
    "PULSAR_TOKEN",
    "PULSAR_TOKEN_FILE",
    "PULSAR_OAUTH2_FILE",
    "PULSAR_BASIC_USER",
    "PULSAR_BASIC_PASSWORD",
    "PULSAR_TLS_TRUST_CERTS_FILE",
    "PYBROKER_PROFILE",
    "PYBROKER_PROFILES",
)
