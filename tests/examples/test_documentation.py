"""Every block of Python in docs/testing.md runs as a user would run it."""

import re
from pathlib import Path

from tests.examples.test_example_projects import run_pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def test_the_code_of_the_page_about_testing_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    code = "\n\n".join(blocks)
    tests = len(re.findall(r"^ *def test_", code, re.MULTILINE))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    (tmp_path / "test_page.py").write_text(code)
    assert tests >= 15
    assert f"{tests} passed" in run_pytest(tmp_path)
