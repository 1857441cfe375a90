"""docs/reference/cli.md is complete: commands, connection options, variables, profile keys, exit codes. Command lines are valid."""

import re
import shlex
from pathlib import Path

import pytest

from pybroker.cli import exit_codes, profiles, which_broker
from pybroker.cli.command_table import COMMANDS
from pybroker.cli.program import command_parser, split

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
PROMPT = re.compile(r"^(?:\$ )?(pybroker [\w-]+ .*)$", re.MULTILINE)
LINES = [
    (str(path.relative_to(DOCS)), line)
    for path in sorted(DOCS.rglob("*.md"))
    for block in re.findall(r"^```\w*\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for line in PROMPT.findall(block)
]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_names_each_command(name: str) -> None:
    assert re.search(rf"`{name}\b", PAGE)


def test_the_page_names_options_variables_and_keys_of_what_says_which_broker() -> None:
    parser = command_parser(COMMANDS["consume"])
    group = next(each for each in parser._action_groups if each.title == "connection and credentials")
    options = {option for action in group._group_actions for option in action.option_strings}
    variables = {*which_broker._ENVIRONMENT.values(), *which_broker._SECRETS_IN_ENVIRONMENT.values()}
    keys = {*profiles.TEXTS, *profiles.PATHS, *profiles.SECRETS, *profiles.FLAGS}
    named = {*options, *variables, *keys, "PYBROKER_PROFILE", "PYBROKER_PROFILES", "NO_COLOR", "PYBROKER_DEBUG"}
    assert not {
        name
        for name in named - {"--timeout"}
        if f"`{name}`" not in PAGE and f"{name}=" not in PAGE and name not in PAGE
    }


def test_the_page_has_each_exit_code() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_") and name != "EXIT_SIGNAL"}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes


@pytest.mark.parametrize(("page", "line"), LINES)
def test_command_lines_of_all_pages_are_valid(page: str, line: str) -> None:
    command, _, arguments = split(shlex.split(re.split(r" [<>#] ?|  ", line)[0])[1:])
    assert command is not None
    command_parser(command).parse_args(arguments[: command.own_arguments])


def test_command_lines_are_found_in_several_pages() -> None:
    assert len({page for page, _ in LINES}) >= 5
