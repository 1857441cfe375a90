"""Every command has help with examples, starts with few imports, and can be completed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pybroker.cli import main
from pybroker.cli.command_table import COMMANDS
from pybroker.cli.commands.completion import completed, script
from pybroker.cli.parsing import subcommands
from pybroker.cli.program import command_parser, split

HEAVY = (
    "asyncio",
    "google.protobuf",
    "pyarrow",
    "cryptography",
    "jwt",
    "starlette",
    "uvloop",
    "pybroker.broker_process",
    "pybroker.config",
)
SHOW_MODULES = """
import contextlib, sys
from pybroker.cli import main
with contextlib.suppress(SystemExit):
    main()
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: pybroker {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_command_are_command_lines_that_it_takes(name: str) -> None:
    epilog = command_parser(COMMANDS[name]).epilog or ""
    lines = [
        part.strip()
        for line in epilog.splitlines()
        for part in line.split("|")
        if f"pybroker {name}" in part and "xargs" not in part
    ]
    assert lines
    for line in lines:
        # What stands two blanks behind is what the line does; redirections are the shell's.
        text = re.split(r"  |[<>)]", line[line.index("pybroker") :])[0]
        command_parser(COMMANDS[name]).parse_args(shlex.split(text)[2:][: COMMANDS[name].own_arguments])


def test_every_subcommand_has_examples_that_it_accepts() -> None:
    found = 0
    for command in COMMANDS.values():
        for name, parser in subcommands(command_parser(command)).items():
            assert parser.description, name
            lines = [line.strip() for line in (parser.epilog or "").splitlines()[1:]]
            assert lines, parser.prog
            for line in lines:
                text = re.split(r"  |[<>)]", line[line.index("pybroker") :])[0]
                _, _, words = split(shlex.split(text)[1:])
                command_parser(command).parse_args(words[: command.own_arguments])
            found += 1
    assert found >= 14


def test_every_option_and_argument_has_a_help_text() -> None:
    own_names = {
        "TOPIC",
        "SUBSCRIPTION",
        "KEY",
        "ID|TIME|earliest|latest",
        "LEDGER:ENTRY[:INDEX]",
        "COORDINATOR:NUMBER",
    }
    for command in COMMANDS.values():
        parser = command_parser(command)
        for each in (parser, *subcommands(parser).values()):
            without = [
                action.dest
                for action in each._actions
                if action.help is None and action.metavar not in own_names and not action.choices
            ]
            assert not without, each.prog


def test_option_of_a_command_is_no_abbreviation_of_a_connection_option() -> None:
    arguments = ["--to", "2026-01-31", "--from", "2026-01-30"]
    assert split(["--timeout", "5s", "pipeline", *arguments]) == (COMMANDS["pipeline"], ["--timeout", "5s"], arguments)


def test_without_a_command_or_with_another_one_the_usage_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["explian"], ["--nosuch"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_help_and_the_commands_over_rest_import_nothing_heavy() -> None:
    """What is imported costs time at every start; a list of modules can be held to, a time cannot."""
    for arguments in (["--help"], ["explain", "--help"], ["topics", "--help"], ["stats", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", SHOW_MODULES, *arguments], capture_output=True, text=True, check=True
        )
        assert not set(HEAVY) & set(done.stderr.split())


def test_completion_knows_every_command_and_option() -> None:
    found = {each.path: each for each in completed()}
    assert set(found[""].commands) == set(COMMANDS)
    assert "--key" in found["explain"].options
    assert "create" in found["tokens"].commands
    assert "--secret-key" in found["tokens create"].options
    assert found["consume"].values["--type"] == "exclusive shared failover key_shared"
    assert found["tokens create"].values["--secret-key"] == "-files"
    assert not [each for each in found["explain"].options if each in {"--token", "--password"}]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("exp", {"explain"}),
        ("consume --ty", {"--type"}),
        ("consume --type key", {"key_shared"}),
        ("tokens cre", {"create", "create-secret-key", "create-key-pair"}),
        ("tokens create --sub", {"--subject"}),
        ("completion ", {"bash", "zsh"}),
        ("explain orders --cons", {"--consumer"}),
        ("peek orders --url ", set()),
        ("produce t --file f", {"found.txt"}),
        ("--prof", {"--profile"}),
        ("--token-file f", {"found.txt"}),
        ("--profile topics exp", {"explain"}),
        ("--url http://b:8080 consume --ty", {"--type"}),
        ("--tls-allow-insecure tokens create --sub", {"--subject"}),
    ],
)
def test_bash_completes_a_line(line: str, wanted: set[str], tmp_path: Path) -> None:
    words = ["pybroker", *line.split(" ")]
    (tmp_path / "found.txt").touch()
    program = f"""{script("bash")}
COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
COMP_CWORD={len(words) - 1}
_pybroker
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert set(done.stdout.split()) == wanted, done.stderr


def test_the_script_for_zsh_has_the_same_tables() -> None:
    assert script("zsh").startswith("#compdef pybroker\n")
    assert script("zsh").count(" echo ") == script("bash").count(" echo ")


@pytest.mark.parametrize("line", ["orders billing --key k", "orders --key k billing", "--key k orders billing"])
def test_names_and_options_may_stand_in_any_order(line: str) -> None:
    options = command_parser(COMMANDS["explain"]).parse_args(line.split())
    assert (str(options.topic), options.subscription, options.key) == (
        "persistent://public/default/orders",
        "billing",
        "k",
    )
