"""Imports of the package and the dependencies that pyproject.toml declares are the same."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.source_trees import source_tree

pytestmark = pytest.mark.usefixtures("trees_go_with_their_module")
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = frozenset({"pybroker", "pyspark_pulsar"})
# Distributions whose module has another name.
MODULES = {
    "google-re2": "re2",
    "grpcio-tools": "grpc_tools",
    "libpass": "passlib",
    "protobuf": "google",
    "pulsar-client": "pulsar",
    "pyjwt": "jwt",
    "python-snappy": "snappy",
}
# The extras that a package may import from, besides the dependencies of the broker. `tables` and `spark` are for analytics.
EXTRAS = {
    "columns": ("tables", "spark"),
    "reading": ("tables", "spark"),
    "spark": ("tables", "spark"),
    "lake": ("tables", "spark"),
    "pipelines": ("tables", "spark"),
    "pyspark_pulsar": ("spark",),
    "testing": ("test",),
    "tools": ("tools",),
}
# Extras of users and developers: the package itself need not import what they install.
NOT_IMPORTED = frozenset({"client", "dev", "docs", "test"})
TYPES_ONLY = "dev"


def modules_of(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=!~;\s]", requirement, maxsplit=1)[0].lower() for requirement in requirements}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


BASE = modules_of(PROJECT["dependencies"])
OF_EXTRA = {name: modules_of(requirements) for name, requirements in PROJECT["optional-dependencies"].items()}


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """The outer modules that a file imports, and whether only a type checker imports them."""
    tree = source_tree(path)
    of_types = {
        node
        for parent in ast.walk(tree)
        if isinstance(parent, ast.If) and "TYPE_CHECKING" in ast.unparse(parent.test)
        for statement in parent.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node in of_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0], node in of_types


IMPORTS = [
    (str(path.relative_to(ROOT / "src")), module, only_types)
    for path in sorted((ROOT / "src").rglob("*.py"))
    for module, only_types in imports_of(path)
    if module not in sys.stdlib_module_names and module not in OURS
]


def package_of(name: str) -> str:
    parts = name.removesuffix(".py").split("/")
    return parts[1] if parts[0] == "pybroker" else parts[0]


def test_each_import_is_declared_for_its_package() -> None:
    undeclared = []
    for name, module, only_types in IMPORTS:
        extras = (*EXTRAS.get(package_of(name), ()), *((TYPES_ONLY,) if only_types else ()))
        if module not in BASE.union(*(OF_EXTRA[extra] for extra in extras)):
            undeclared.append((name, module))
    assert not undeclared


def test_each_declared_dependency_is_imported() -> None:
    imported = {module for _, module, _ in IMPORTS}
    declared = BASE.union(*(modules for extra, modules in OF_EXTRA.items() if extra not in NOT_IMPORTED))
    assert not declared - imported


def test_libraries_that_http_server_extends_have_an_upper_bound() -> None:
    bounded = {
        name for name in ("h11", "uvicorn") for line in PROJECT["dependencies"] if re.match(f"{name}>=.*,<", line)
    }
    assert bounded == {"h11", "uvicorn"}
