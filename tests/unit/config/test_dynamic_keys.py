"""No code keeps the value of a dynamic key without being notified of changes."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pybroker.config.dynamic import dynamic_keys

SOURCE = Path(__file__).resolve().parents[3] / "src" / "pybroker"

# Functions that read dynamic keys once and are notified of changes (`broker/policies/live_settings.py`), or create
# short-lived objects.
TOLD = {
    ("broker_process.py", "_start"): "makes the store and its limits, which follow",
    ("broker_process.py", "run"): "sets the level of the log, which follows",
    ("broker/lifecycle/bundle_handover.py", "run"): "runs once, when the broker stops",
    ("broker/context/broker_context.py", "__init__"): "makes entry filters and limits, which follow",
}


FIELDS = {info.field for info in dynamic_keys().values()}


def reads(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """Yield every dynamic field of an object named `config` that is read, with the reading function."""
    for node in ast.iter_child_nodes(tree):
        name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        is_field = isinstance(node, ast.Attribute) and node.attr in FIELDS
        if is_field and ast.unparse(node.value).split(".")[-1] in {"config", "_config"}:  # type: ignore[attr-defined]
            yield name, node.attr  # type: ignore[attr-defined]
        yield from reads(node, name)


def kept_dynamic_fields() -> set[tuple[str, str, str]]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        title = str(path.relative_to(SOURCE))
        for function, field in reads(ast.parse(path.read_text(encoding="utf-8"))):
            if function in {"__init__", "_start", "run"} and (title, function) not in TOLD:
                found.add((title, function, field))
    return found


def test_no_constructor_keeps_the_value_of_a_dynamic_key() -> None:
    assert kept_dynamic_fields() == set(), "read it when it is needed, or listen in broker/policies/live_settings.py"


def test_a_constructor_that_keeps_a_dynamic_key_is_found() -> None:
    tree = ast.parse("class A:\n def __init__(self, broker):\n  self.x = broker.config.log_level")
    assert list(reads(tree)) == [("__init__", "log_level")]
