"""A short run of `make pipelines`, and what its judges find when something is wrong."""

import shutil
from pathlib import Path

import pytest
from tests.pipelines.judging import compare
from tests.pipelines.sending import Content

ONE, TWO = Content(b"1", b"k", (("n", "1"),), 5), Content(b"2", None, (), None)


def test_what_is_lost_doubled_or_changed_is_told() -> None:
    assert compare("it", [ONE, TWO], [TWO, ONE]) == []
    assert compare("it", [ONE, TWO], [ONE]) == ["it: 1 lost, such as [(b'2', None, None, 1)]"]
    assert compare("it", [ONE], [ONE, ONE]) == ["it: 1 too many, such as [(b'1', b'k', 5, 1)]"]
    assert len(compare("it", [ONE], [ONE._replace(properties=())])) == 2


@pytest.mark.spark
@pytest.mark.long
def test_a_query_and_lakes_that_are_killed_at_random_lose_and_double_nothing(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 on the PATH")
    from tests.pipelines.soak import Soak

    result = Soak(tmp_path, seed=1, seconds=20, messages_per_s=100, tell=lambda _: None).run()
    assert not result.violations, result.line()
    assert result.harms.total() > 2
