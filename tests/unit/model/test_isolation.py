from __future__ import annotations

import pytest

from pybroker.model.cluster_data import NamespaceIsolationData, namespaces_to_unload

NAMESPACES = ["a/one", "a/two", "b/one"]


def policy(*namespaces: str, scope: str | None = None, primary: str = "h1") -> NamespaceIsolationData:
    return NamespaceIsolationData(list(namespaces), [primary], unload_scope=scope)


@pytest.mark.parametrize(
    ("new", "former", "unloaded"),
    [
        (policy("a/.*"), None, ["a/one", "a/two"]),
        (policy("a/.*", scope="none"), None, []),
        (policy("a/.*", scope="changed"), policy("a/.*"), []),
        (policy("a/.*"), policy("a/.*", primary="h2"), ["a/one", "a/two"]),
        (policy("a/.*", "b/.*"), policy("a/.*"), ["b/one"]),
        (policy("b/.*"), policy("a/.*", "b/.*"), ["a/one", "a/two"]),
        (policy("a/.*", scope="all_matching"), policy("a/.*"), ["a/one", "a/two"]),
        (policy("a/.*", scope="all_matching"), policy("b/.*"), NAMESPACES),
        (policy("a/.*", scope="none"), policy("b/.*", primary="h2"), []),
    ],
)
def test_scope_selects_namespaces(
    new: NamespaceIsolationData, former: NamespaceIsolationData | None, unloaded: list[str]
) -> None:
    assert namespaces_to_unload(NAMESPACES, new, former) == unloaded
