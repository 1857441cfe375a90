"""Files stay short, documented and free of what the style forbids."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 600
GENERATED = {
    ROOT / "src" / "pybroker" / "wire" / "pulsar_api_pb2.py",
    ROOT / "src" / "pybroker" / "config" / "broker_config.py",
}
# Split, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
SCRATCH_TASKS = {"create_task", "ensure_future", "gather"}
BROAD = {"Exception", "BaseException"}


def written_files(*directories: str) -> list[Path]:
    files = [path for directory in directories for path in sorted((ROOT / directory).rglob("*.py"))]
    return [path for path in files if path not in GENERATED]


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCES = written_files("src", "tools", "benchmarks")
EVERYTHING = SOURCES + written_files("tests")


@pytest.mark.parametrize("path", EVERYTHING, ids=title)
def test_a_file_is_at_most_600_lines_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", EVERYTHING, ids=title)
def test_a_file_leaves_nothing_for_later(path: Path) -> None:
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if UNFINISHED.search(line)]
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=title)
def test_a_module_begins_with_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, "no docstring"
    assert docstring.split("\n")[0].strip(), "the first line says nothing"


@pytest.mark.parametrize("path", SOURCES, ids=title)
def test_no_failure_is_passed_over_in_silence(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and is_silent(node)]
    assert not silent


@pytest.mark.parametrize("path", written_files("src"), ids=title)
def test_every_task_has_an_owner(path: Path) -> None:
    if path == ROOT / "src" / "pybroker" / "tasks.py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not list(ownerless_tasks(tree)), "start tasks in a TaskGroup, or through tasks.TaskOwner"


def is_silent(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything, or anything at all, and does nothing."""
    broad = handler.type is None or ast.unparse(handler.type) in BROAD
    return broad and all(isinstance(statement, ast.Pass) for statement in handler.body)


def ownerless_tasks(tree: ast.AST) -> Iterator[int]:
    """Lines that start tasks by asyncio's functions or a loop's method; a TaskGroup's `create_task` is fine."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            if SCRATCH_TASKS & {alias.name for alias in node.names}:
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in SCRATCH_TASKS:
            owner = ast.unparse(node.value)
            if owner == "asyncio" or owner.endswith(("loop", "loop()")):
                yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(work())",
        "asyncio.gather(a, b)",
        "self._loop.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "from asyncio import ensure_future",
    ],
)
def test_ways_to_start_a_task_without_owner_are_found(source: str) -> None:
    assert list(ownerless_tasks(ast.parse(source)))


def test_a_task_group_may_start_tasks() -> None:
    assert not list(ownerless_tasks(ast.parse("group.create_task(work())")))
