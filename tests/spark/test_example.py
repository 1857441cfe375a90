"""The example of docs/how-to/spark.md, as it stands there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.spark
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "spark.md"


def test_the_example_of_the_page_works_from_publishing_to_the_table(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {
        "spark": spark,
        "service_url": broker.url,
        "admin_url": broker.http_url,
        "directory": str(tmp_path),
    }
    exec(compile(code, str(PAGE), "exec"), names)
    orders = range(1000)
    expected = [
        (f"c{customer}", len(orders[customer::7]), sum(number * 1.5 for number in orders[customer::7]))
        for customer in range(7)
    ]
    assert names["by_customer"] == expected
    assert len(names["frame"]) == 1000
    # What is older than ten minutes behind the last order is final: 16 minutes 40 seconds are two windows that are over.
    assert set(Counter(names["seen"])) == {f"c{customer}" for customer in range(7)}
