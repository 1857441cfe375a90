"""`docs/reference/pulsar-admin.md` lists the commands that the walk with pulsar-admin makes."""

import re
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
WALK = (REPOSITORY / "tests/differential/scenarios_pulsar_admin.py").read_text()
TABLE = (REPOSITORY / "docs/reference/pulsar-admin.md").read_text()
_CALL = re.compile(r'walk(?:\.\w+)?\(\s*(?:lambda [^,]+,\s*)?"(\w+)",\s*"([\w-]+)"')
_ROW = re.compile(r"^\| `(.+)` \| (\d+) \|", re.MULTILINE)


def test_the_table_of_daily_operations_is_the_walk() -> None:
    walked = Counter(" ".join(found) for found in _CALL.findall(WALK))
    assert {command: int(calls) for command, calls in _ROW.findall(TABLE)} == walked
    assert f"{walked.total()} calls of {len(walked)} commands" in TABLE
    assert walked.total() >= 60
