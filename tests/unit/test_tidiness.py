"""Files are documented and free of the things that the style forbids."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.source_trees import source_tree

pytestmark = pytest.mark.usefixtures("trees_go_with_their_module")
ROOT = Path(__file__).resolve().parents[2]
NAMED_FILES = re.compile(r"`([a-z_0-9/]+\.(?:py|conf|avsc))`")
PLACES = ("src", "tests", "conf", "docs", "tools", "benchmarks")
# Nobody reads or edits them as they are, so they may be as long as what they are made from asks for.
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
TEXTS = {path: path.read_text(encoding="utf-8") for path in SOURCES + written_files("tests")}


def test_a_file_leaves_nothing_for_later() -> None:
    assert not {title(path): found for path, text in TEXTS.items() if (found := UNFINISHED.findall(text))}


def test_a_module_begins_with_what_it_is() -> None:
    documentation = {path: ast.get_docstring(source_tree(path)) or "" for path in SOURCES}
    assert not [title(path) for path, text in documentation.items() if not text.split("\n")[0].strip()]


def test_a_file_that_a_page_or_a_module_names_is_there() -> None:
    # Tutorials name the files that a reader creates.
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "tutorials"]
    pages += [ROOT / "README.md", *SOURCES]
    files = [f"/{title(path)}" for directory in PLACES for path in (ROOT / directory).rglob("*")]
    absent = {
        (title(page), name)
        for page in pages
        for name in NAMED_FILES.findall(page.read_text(encoding="utf-8"))
        if not any(file.endswith(f"/{name}") for file in files)
    }
    assert not absent


def test_no_failure_is_passed_over_in_silence() -> None:
    assert not {title(path): lines for path in SOURCES if (lines := list(silent_handlers(source_tree(path))))}


def test_every_task_has_an_owner() -> None:
    """Tasks are started in a TaskGroup, or through tasks.TaskOwner."""
    starters = {path: list(ownerless_tasks(source_tree(path))) for path in SOURCES if title(path).startswith("src")}
    assert {title(path) for path, lines in starters.items() if lines} <= {"src/pybroker/runtime/tasks.py"}


def silent_handlers(tree: ast.AST) -> Iterator[int]:
    """Lines of handlers that pass over whatever it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and is_silent(node):
            yield node.lineno


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


def test_a_handler_that_passes_over_everything_is_found() -> None:
    source = "try:\n  work()\nexcept Exception:\n  pass"
    assert list(silent_handlers(ast.parse(source))) == [3]
    assert not list(silent_handlers(ast.parse(source.replace("Exception", "OSError"))))


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
