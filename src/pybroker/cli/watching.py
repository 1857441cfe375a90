"""`--watch`: repeats the output of a command until Ctrl-C.

A terminal is redrawn. A pipe receives one block per refresh, or one line with `--json`.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable

from pybroker.cli.exit_codes import EXIT_OK, CommandFailed, say
from pybroker.cli.output import DIM, RED, Output, terminal_width
from pybroker.cli.parsed_arguments import seconds
from pybroker.cli.text_tables import moment, printable

DEFAULT_PAUSE_S = 2.0
LEAST_PAUSE_S = 0.1
CLEAR = "\x1b[H\x1b[2J"
"""Move to the first line and clear the screen. Lines that have scrolled out of view stay."""
Draw = Callable[[Output], int | None]
"""Fetches the current state and writes it. Returns the exit code, or None for success. Raises CommandFailed."""


def add_watch_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=pause,
        const=DEFAULT_PAUSE_S,
        metavar="SECONDS",
        help=f"refresh every SECONDS ({DEFAULT_PAUSE_S:g}) until Ctrl-C; after the names, or as --watch=SECONDS",
    )


def pause(text: str) -> float:
    """Parse the pause between refreshes, in seconds.

    If `text` is not a duration, it may be a name that argparse took as the value of `--watch`. The error text therefore
    explains how to write the option.
    """
    try:
        pause_s = seconds(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            "the value of --watch must be a time such as 2s: write --watch after the names, or write --watch=2s"
        ) from None
    if pause_s < LEAST_PAUSE_S:
        raise argparse.ArgumentTypeError(f"the value of --watch is too short: the minimum is {LEAST_PAUSE_S:g}s")
    return pause_s


def show(output: Output, pause_s: float | None, draw: Draw) -> int:
    """Call `draw` once, or every `pause_s` seconds until Ctrl-C. Return the exit code. Raises CommandFailed if the
    first call fails.

    A later failure is shown and does not end the command, because the broker may be restarting.
    """
    if pause_s is None:
        return draw(output) or EXIT_OK
    is_first = True
    while True:
        if output.is_terminal:
            output.width = terminal_width()
        text = io.StringIO()
        try:
            draw(output.onto(text))
        except CommandFailed as error:
            if is_first:
                raise
            _write_failure(output, str(error))
        else:
            _write_block(output, text.getvalue(), pause_s, is_first=is_first)
        output.flush()
        is_first = False
        time.sleep(pause_s)


def _write_block(output: Output, text: str, pause_s: float, *, is_first: bool) -> None:
    if output.is_json:
        output.write(text)
        return
    if output.is_terminal:
        output.write(CLEAR)
    elif not is_first:
        output.line()
    output.write(text)
    output.line()
    output.line(f"{_now()}, every {pause_s:g}s; Ctrl-C ends", DIM)


def _write_failure(output: Output, failure: str) -> None:
    if output.is_json:
        output.record({"error": failure})
    elif output.is_terminal:
        output.line(f"{_now()}: {printable(failure)}", RED)
    else:
        say(failure)


def _now() -> str | None:
    return moment(int(time.time() * 1000))
