"""Finds keys of `conf/broker.conf` that are marked as supported but never read, and the reverse.

A field counts as read if a module outside `config/` and `model/` uses an attribute of its name.
"""

import ast
import sys
from pathlib import Path

from pybroker.config import KEYS

SOURCE = Path(__file__).resolve().parent.parent / "src" / "pybroker"


def read_attributes() -> set[str]:
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if not {"config", "model"} & set(path.relative_to(SOURCE).parts):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names.update(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return names


def unread_supported_keys() -> list[str]:
    """Return supported keys without effect."""
    read = read_attributes()
    return [key for key, info in KEYS.items() if info.supported and info.field not in read]


def read_unsupported_keys() -> list[str]:
    """Return keys that are marked as unsupported and are read."""
    read = read_attributes()
    return [key for key, info in KEYS.items() if not info.supported and info.field in read]


def main() -> int:
    findings = [f"{key}: marked as supported, read by no module" for key in unread_supported_keys()]
    findings += [f"{key}: marked as unsupported, but read" for key in read_unsupported_keys()]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
