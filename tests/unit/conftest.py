"""What unit tests share."""

from collections.abc import Iterator

import pytest
from tests.support.source_trees import source_tree


@pytest.fixture(scope="module")
def trees_go_with_their_module() -> Iterator[None]:
    """They are some hundred thousand objects, which every collection of garbage in later tests would look at."""
    yield
    source_tree.cache_clear()
