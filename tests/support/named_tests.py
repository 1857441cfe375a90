"""Tests that a page of the documentation names, as `path/from/tests.py::test_name`."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NAMED_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the test functions of a file. `path` begins below the directory of all tests."""
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))
