"""docs/reference/cli.md names what there is: commands, options of the broker, variables, keys of profiles, exit codes."""

import re
import shlex
from pathlib import Path

import pytest

from pybroker.cli import exit_codes, profiles, which_broker
from pybroker.cli.command_table import COMMANDS
from pybroker.cli.program import command_parser

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
LINES = [line.split("  ")[0] for line in PAGE.splitlines() if line.startswith("pybroker ")]


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


@pytest.mark.parametrize("line", LINES)
def test_the_command_lines_of_the_page_are_taken(line: str) -> None:
    words = shlex.split(re.split(r"[<>#]", line)[0])
    command_parser(COMMANDS[words[1]]).parse_args(words[2:])
