"""Detection of import cycles."""

from collections.abc import Mapping


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Return the sets of modules that can reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    found: list[frozenset[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        open_modules.append(name)
        for imported in sorted(graph[name]):
            if imported not in index:
                visit(imported)
                lowest[name] = min(lowest[name], lowest[imported])
            elif imported in open_modules:
                lowest[name] = min(lowest[name], index[imported])
        if lowest[name] == index[name]:
            start = open_modules.index(name)
            circle = frozenset(open_modules[start:])
            del open_modules[start:]
            if len(circle) > 1:
                found.append(circle)

    for name in graph:
        if name not in index:
            visit(name)
    return found
