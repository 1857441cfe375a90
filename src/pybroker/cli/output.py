"""A command's output: text or JSON.

Text is fitted to the terminal. It is coloured only on a terminal, unless NO_COLOR is set or TERM is `dumb`. JSON is one
document, or one line per item for commands that run until stopped.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

from pybroker.cli.exit_codes import EXIT_OK
from pybroker.cli.text_tables import Cell, table

BOLD, RED, YELLOW, GREEN, DIM = "1", "31", "33", "32", "2"
MIN_WIDTH = 40
"""Narrower terminals are treated as this width."""


class Output:
    """The output stream and format of one command."""

    def __init__(
        self,
        stream: IO[str],
        *,
        is_json: bool = False,
        width: int | None = None,
        has_colours: bool = False,
        is_terminal: bool = False,
    ) -> None:
        self.is_json = is_json
        self.is_terminal = is_terminal
        self.width = width
        """Terminal columns, or None if the output is not a terminal. Then nothing is cut."""
        self._stream = stream
        self._has_colours = has_colours
        self._is_line_per_document = False
        # On an ASCII stream, JSON escapes are used; the stream's own escapes would not be JSON.
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-")
        self._is_ascii = encoding not in {"utf-8", "utf8"}

    def onto(self, stream: IO[str]) -> Self:
        """Return an output to another stream, with one line per JSON document."""
        output = copy.copy(self)
        output._stream = stream  # noqa: SLF001  (its own copy)
        output._is_line_per_document = True  # noqa: SLF001
        return output

    def document(self, document: object) -> None:
        if self._is_line_per_document:
            self.record(document)
            return
        self._stream.write(json.dumps(document, indent=2, ensure_ascii=self._is_ascii) + "\n")

    def record(self, document: object) -> None:
        self._stream.write(json.dumps(document, ensure_ascii=self._is_ascii) + "\n")
        self._stream.flush()

    def line(self, text: str = "", *styles: str) -> None:
        self._stream.write(self.styled(text, *styles) + "\n")

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._stream.write(line + "\n")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Cell]], nothing: str = "") -> None:
        """Write a table, or `nothing` if there are no rows."""
        if not rows and nothing:
            self.line(nothing)
            return
        first, *others = table(head, rows, self.width)
        self.line(first, BOLD)
        self.lines(others)

    def write(self, text: str) -> None:
        self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def styled(self, text: str, *styles: str) -> str:
        if not styles or not self._has_colours or not text:
            return text
        return f"\x1b[{';'.join(styles)}m{text}\x1b[0m"


def add_json_option(
    parser: argparse.ArgumentParser, help_text: str = "write one JSON document instead of text"
) -> None:
    parser.add_argument("--json", action="store_true", help=help_text)


def output_of(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Output:
    """Return the standard output in the format that options, terminal and environment request."""
    environment = os.environ if environment is None else environment
    is_terminal = sys.stdout.isatty()
    has_colours = is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # On an ASCII stream, escape other characters instead of failing.
        reconfigure(errors="backslashreplace")
    return Output(
        sys.stdout,
        is_json=getattr(options, "json", False),
        width=terminal_width() if is_terminal else None,
        has_colours=has_colours and not getattr(options, "json", False),
        is_terminal=is_terminal,
    )


def terminal_width() -> int:
    return max(MIN_WIDTH, shutil.get_terminal_size().columns)


def write_done(options: argparse.Namespace, text: str) -> int:
    output = output_of(options)
    if output.is_json:
        output.document({"done": True, "text": text})
    else:
        output.line(text)
    return EXIT_OK
