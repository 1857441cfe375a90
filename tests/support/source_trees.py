"""Modules as syntax trees: parsed when a test asks, not when it is collected, for every process of a run collects all tests."""

import ast
from functools import cache
from pathlib import Path


@cache
def source_tree(path: Path) -> ast.Module:
    """The tree of a file; whoever asks for many has them forgotten with its module: `trees_go_with_their_module`."""
    return ast.parse(path.read_text(encoding="utf-8"))
