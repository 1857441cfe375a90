"""`pulsar-admin` of the published jars against any broker: many commands in one Java process.

Needs Java 17 and the class path of `tests/support/java.py`.
"""

import base64
import pathlib
import subprocess
from dataclasses import dataclass
from typing import Self

from tests.support.java import java_command

_LINES = pathlib.Path(__file__).with_name("AdminLines.java")


@dataclass(frozen=True)
class AdminAnswer:
    """What a command said; `is_done` is exit code 0."""

    is_done: bool
    output: str
    errors: str


class PulsarAdmin:
    """Owns one Java process, from `with` to its end."""

    def __init__(self, http_url: str) -> None:
        self._command = java_command(_LINES, http_url)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def run(self, *arguments: str) -> AdminAnswer:
        """One command, for example `run("topics", "stats", topic)`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(base64.b64encode(each.encode()).decode() for each in arguments) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().rstrip("\n")
        if not line:
            raise RuntimeError(f"pulsar-admin ended at {arguments}")
        code, output, errors = line.split(" ")
        return AdminAnswer(code == "0", base64.b64decode(output).decode(), base64.b64decode(errors).decode())
