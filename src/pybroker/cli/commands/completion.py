"""`pybroker completion`: Print a script that completes commands, options and their values in bash or zsh.

The script is generated from the parsers. It calls no broker.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from pybroker.cli.exit_codes import EXIT_OK
from pybroker.cli.parsing import CommandParser, described

EXAMPLES = """
source <(pybroker completion bash)
pybroker completion bash > ~/.local/share/bash-completion/completions/pybroker
pybroker completion zsh > "${fpath[1]}/_pybroker"
"""
_FILES = ("FILE", "F", "DIR", "WHERE")
_BASH = """\
# Completion of pybroker for bash.
_pybroker() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" path="" index known
    for ((index = 1; index < COMP_CWORD; index++)); do
        # The value of an option is not a command, even if it has the name of one.
        [[ -n "$(_pybroker_values "$path" "${{COMP_WORDS[index]}}")" ]] && ((index++)) && continue
        known=" $(_pybroker_words commands "$path") "
        [[ "$known" == *" ${{COMP_WORDS[index]}} "* ]] && path="${{path:+$path }}${{COMP_WORDS[index]}}"
    done
    local values
    values="$(_pybroker_values "$path" "$before")"
    if [[ "$values" == "-files" ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    elif [[ "$values" == "-any" ]]; then
        COMPREPLY=()
    elif [[ -n "$values" ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    elif [[ "$word" == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_pybroker_words options "$path")" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -W "$(_pybroker_words commands "$path")" -- "$word")
    fi
}}
{tables}
complete -o filenames -F _pybroker pybroker
"""
_ZSH = """\
#compdef pybroker
# Completion of pybroker for zsh.
_pybroker() {{
    local word_path="" index values
    for ((index = 2; index < CURRENT; index++)); do
        # The value of an option is not a command, even if it has the name of one.
        [[ -n "$(_pybroker_values "$word_path" "$words[index]")" ]] && ((index++)) && continue
        [[ " $(_pybroker_words commands "$word_path") " == *" $words[index] "* ]] &&
            word_path="${{word_path:+$word_path }}$words[index]"
    done
    values="$(_pybroker_values "$word_path" "$words[CURRENT-1]")"
    if [[ "$values" == "-files" ]]; then
        _files
    elif [[ "$values" == "-any" ]]; then
        return
    elif [[ -n "$values" ]]; then
        compadd -- ${{=values}}
    elif [[ "$words[CURRENT]" == -* ]]; then
        compadd -- ${{=$(_pybroker_words options "$word_path")}}
    else
        compadd -- ${{=$(_pybroker_words commands "$word_path")}}
    fi
}}
{tables}
# From fpath, all of this is what the first Tab calls: that one is to be completed, too.
if [[ "$funcstack[1]" == _pybroker ]]; then
    _pybroker "$@"
else
    compdef _pybroker pybroker
fi
"""


@dataclass(frozen=True, slots=True)
class Completed:
    """Words that may follow after `pybroker PATH` on a command line."""

    path: str
    commands: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    """Possible values by option: words, `-files` for file names, `-any` for free text."""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell of the script")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    sys.stdout.write(script(options.shell))
    return EXIT_OK


def script(shell: str) -> str:
    return (_BASH if shell == "bash" else _ZSH).format(tables=_tables(list(completed())))


def completed() -> Iterator[Completed]:
    """Yield the completions of all commands. Imports every command."""
    from pybroker.cli.command_table import COMMANDS  # noqa: PLC0415  (that module imports this one by name)
    from pybroker.cli.program import overview  # noqa: PLC0415  (the same)

    yield next(_of_parser("", overview()))
    for command in COMMANDS.values():
        parser = CommandParser(prog=f"pybroker {command.name}")
        command.load().add_options(parser)
        yield from _of_parser(command.name, parser)


def _of_parser(path: str, parser: argparse.ArgumentParser) -> Iterator[Completed]:
    found = Completed(path)
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # noqa: SLF001  (there is no public way to ask a parser what it knows)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found.commands.extend(action.choices)
            below += action.choices.items()
        elif action.help is argparse.SUPPRESS:
            continue
        elif action.option_strings:
            found.options.extend(action.option_strings)
            if action.nargs != 0:
                found.values.update(dict.fromkeys(action.option_strings, _values(action)))
        elif action.choices:
            found.commands.extend(map(str, action.choices))
    yield found
    for name, each in below:
        yield from _of_parser(f"{path} {name}", each)


def _values(action: argparse.Action) -> str:
    if action.choices:
        return " ".join(map(str, action.choices))
    return "-files" if action.metavar in _FILES else "-any"


def _tables(found: list[Completed]) -> str:
    words = [
        f"        {shlex.quote(f'{kind}:{each.path}')}) echo {shlex.quote(' '.join(listed))} ;;"
        for each in found
        for kind, listed in (("commands", each.commands), ("options", each.options))
        if listed
    ]
    values = [
        f"        {shlex.quote(f'{each.path}:{option}')}) echo {shlex.quote(value)} ;;"
        for each in found
        for option, value in each.values.items()
    ]
    return "\n".join(
        [
            "_pybroker_words() {",
            '    case "$1:$2" in',
            *words,
            "    esac",
            "}",
            "_pybroker_values() {",
            '    case "$1:$2" in',
            *values,
            "    esac",
            "}",
        ]
    )
