"""The permission of each REST call, as docs/reference/rest.md and its further pages list it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from starlette.routing import Route

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
DOCUMENTS = [REFERENCE / "rest.md", REFERENCE / "rest-policies.md", REFERENCE / "rest-details.md"]
POLICY = "<policy>"
Documented = dict[tuple[str, str], str]
"""Permissions by method and path. The method is `any` where the document says so, the path of a policy `<policy>`."""


def method_of(route: Route) -> str:
    return min((route.methods or set()) - {"HEAD"})


def named(path: str) -> str:
    """Return a path in the words of the documents, for any names of parameters."""
    path = re.sub(r"^/admin/v[23]", "", path)
    path = path.replace("{domain}/{tenant}/{namespace}/{topic}", "T").replace("{tenant}/{namespace}", "N")
    return re.sub(r"\{[^}]*\}", "{}", path)


def documented_permissions() -> Documented:
    found: Documented = {}
    for line in (line for page in DOCUMENTS for line in page.read_text(encoding="utf-8").splitlines()):
        cells = [cell.strip() for cell in line.replace(r"\|", "/").strip("|").split("|")]
        if len(cells) != 4 or not re.fullmatch(r"[SAPLC-]( [SAPLC-])*|`produce`", cells[2]):
            continue
        methods = cells[0].split() or [POLICY]
        permissions = cells[2].strip("`").split()
        for index, method in enumerate(methods):
            for text in re.findall(r"`([^`]*)`", cells[1]):
                for path in _variants(text):
                    found[method, path] = permissions[index] if len(permissions) > 1 else permissions[0]
    return found


def permission_of(documented: Documented, method: str, path: str) -> str | None:
    """Return the documented permission of a route; None for a route that no document lists."""
    words = named(path)
    found = documented.get((method, words)) or documented.get(("any", words))
    if found is None and words.startswith(("/namespaces/N/", "/T/")):
        base = words[: words.index("/", len("/namespaces/")) if words.startswith("/namespaces/") else 2]
        found = documented.get((POLICY, f"{base}/{POLICY}"))
    return found


def _variants(path: str) -> Iterator[str]:
    """Yield the paths of one path in a document: `[x]` is optional, `{a,b}` a choice, and `/...` everything below."""
    if path.endswith("/..."):
        base = path.removesuffix("/...")
        yield from (base, base + "/{}")
    elif optional := re.search(r"\[([^]]*)\]", path):
        for text in ("", optional[1]):
            yield from _variants(path.replace(optional[0], text, 1))
    elif choice := re.search(r"\{([^}]*,[^}]*)\}", path):
        for text in choice[1].split(","):
            yield from _variants(path.replace(choice[0], text, 1))
    else:
        yield named(path)
