"""The reference of log events names each event of the code once, in the section of its level, and no other."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "log-events.md").read_text()
SECTIONS = {"Errors": {"error"}, "Warnings": {"warning"}, "Information": {"info", "audit"}}
LEVELS = ("debug", "info", "warning", "error", "audit")


def events_of_code() -> dict[str, set[str]]:
    """The levels of each event. A name must be a constant, so that it can be searched for."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "src" / "pybroker").rglob("*.py")):
        if path.name == "logs.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if (
                not isinstance(node.func.value, ast.Name)
                or node.func.value.id != "logs"
                or node.func.attr not in LEVELS
            ):
                continue
            name = node.args[0]
            assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: the event's name is not a constant"
            found[str(name.value)].add(node.func.attr)
    return found


def events_of_page() -> dict[str, list[str]]:
    """The sections that name each event."""
    found: dict[str, list[str]] = defaultdict(list)
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        for line in text.splitlines():
            if line.startswith("| `"):
                for name in re.findall(r"`([a-z_]+\.[a-z_]+)`", line.split("|")[1]):
                    found[name].append(title)
    return found


def test_page_names_each_event_once() -> None:
    code, page = events_of_code(), events_of_page()
    assert set(code) == set(page)
    assert not {name: sections for name, sections in page.items() if len(sections) > 1}


def test_section_is_that_of_the_highest_level() -> None:
    page = events_of_page()
    for name, levels in events_of_code().items():
        (section,) = page[name]
        if section in SECTIONS:
            highest = next(level for level in ("error", "warning", "info", "audit", "debug") if level in levels)
            assert highest in SECTIONS[section], name
