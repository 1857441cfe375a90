"""Pages of the documentation that are generated from the code when the site is built.

`GENERATED_PAGES` has the text of each page by its path below `docs`. `tools/docs_site.py` adds them to the site.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest import mock

from tools.generate_config import read_keys

from pybroker.cli.command_table import COMMANDS
from pybroker.cli.program import command_parser, overview
from pybroker.config.setting_types import KeyInfo, Value
from pybroker.model.findings import Code

CONF = Path(__file__).resolve().parents[1] / "conf" / "broker.conf"
SECURITY = CONF.parents[1] / "SECURITY.md"
HELP_COLUMNS = 82
SECTION = re.compile(r"^# =+ (.+) =+\n", re.MULTILINE)


def configuration_keys() -> str:
    """Return the page with all configuration keys by section, from `conf/broker.conf`."""
    lines = [
        "# Configuration keys",
        "",
        "This page lists each configuration key with its default, its values and its meaning, in the order of `conf/broker.conf`.",
        "[Configuration](configuration.md) explains how to set and change keys. *Dynamic* keys can be changed while the broker",
        "runs. The values of *secret* keys are never shown. Another page lists the",
        "[keys without effect](configuration.md#known-keys-without-effect-so-far).",
    ]
    _, *sections = SECTION.split(CONF.read_text(encoding="utf-8"))
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        keys = [info for info in read_keys(text) if info.supported]
        if keys:
            lines += ["", f"## {title}", "", "| Key and default | Meaning and values |", "|---|---|"]
            lines += [_key_row(info) for info in keys]
    return "\n".join(lines) + "\n"


def _key_row(info: KeyInfo) -> str:
    default = _default(info.default)
    shown = f"<br>`{default}`" if default else ""
    flags = [name for name, is_set in (("dynamic", info.dynamic), ("secret", info.secret)) if is_set]
    values = ", ".join([_values(info), *(f"*{flag}*" for flag in flags)])
    return f"| `{info.key}`{shown} | {_cell(info.doc)}<br>{values} |"


def _default(value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _values(info: KeyInfo) -> str:
    if info.choices:
        return " or ".join(f"`{choice}`" if choice else "empty" for choice in info.choices)
    words = {"opt int": "int or empty"}.get(info.type.value, info.type.value)
    if info.minimum is None:
        return words
    return (
        f"{words}, {info.minimum} to {info.maximum}" if info.maximum is not None else f"{words}, {info.minimum} or more"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def cli_options() -> str:
    lines = [
        "# Command line options",
        "",
        "This page lists all options of each command, as `pybroker COMMAND --help` prints them. [Command line](cli.md) explains",
        "how the commands find a broker, their output, and their exit codes.",
    ]
    with mock.patch.dict(os.environ, {"COLUMNS": str(HELP_COLUMNS), "NO_COLOR": "1"}):
        for title, parser in _parsers():
            lines += ["", f"## {title}", "", "```text", parser.format_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield "pybroker", overview()
    for command in COMMANDS.values():
        parser = command_parser(command)
        yield command.name, parser
        for name, subparser in _subcommands(parser):
            yield f"{command.name} {name}", subparser


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001  (argparse has no public list of them)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from ((name, each) for name, each in action.choices.items() if each.format_usage())


def finding_codes() -> str:
    """Return the page with the codes of `explain`, their meanings and advice."""
    lines = [
        "# Finding codes",
        "",
        "This page explains the codes in the output of [`pybroker explain`](../how-to/explain.md), with advice for each code. The",
        "codes are in the order in which you should fix them, because an earlier cause often explains a later finding.",
        "Programs can rely on the codes: a code never changes its meaning. The output of `explain` also contains the affected",
        "objects, figures, and commands.",
    ]
    for code in Code:
        lines += ["", f"## {code.value}", "", code.meaning, "", f"*What to do:* {code.advice}"]
    return "\n".join(lines) + "\n"


def threat_model() -> str:
    """Return SECURITY.md with links that are relative to its path in the site."""
    return (
        SECURITY.read_text(encoding="utf-8").replace("](docs/", "](../").replace("# Security\n", "# Threat model\n", 1)
    )


GENERATED_PAGES: Mapping[str, Callable[[], str]] = {
    "reference/configuration-keys.md": configuration_keys,
    "reference/cli-options.md": cli_options,
    "reference/finding-codes.md": finding_codes,
    "explanation/threat-model.md": threat_model,
}
