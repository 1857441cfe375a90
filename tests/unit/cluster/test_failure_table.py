"""docs/cluster/failures.md has a row for each fault of a cluster; the row names finding codes that exist, and tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.explain.test_explain_table import TESTS

from pybroker.model.findings import Code

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cluster" / "failures.md"
REFUSED_START: tuple[Code, ...] = ()
"""No code: the start ends with an error, whose text the test checks."""
FAULTS: dict[str, tuple[tuple[Code, ...], str]] = {
    "Clocks of brokers differ": ((Code.CLOCK_SKEW,), "test_clock_of_another_broker_that_is_ahead_is_reported"),
    "cannot reach ZooKeeper for longer": (
        (Code.METADATA_UNREACHABLE, Code.BUNDLE_NOT_SERVED),
        "test_lost_session_closes_topics_and_another_broker_serves_them",
    ),
    "Two brokers act as the owner": (
        (Code.BUNDLE_OWNER_CONFLICT,),
        "test_explain_names_conflict_between_owner_and_document",
    ),
    "The process of a broker hangs for longer": (
        (Code.OWNER_NOT_ANSWERING,),
        "test_explain_names_frozen_owner_and_frozen_leader",
    ),
    "The process of the leader hangs": (
        (Code.BUNDLE_WITHOUT_OWNER,),
        "test_explain_names_frozen_owner_and_frozen_leader",
    ),
    "ZooKeeper is restarted": (
        (Code.METADATA_UNREACHABLE,),
        "test_loaded_topic_continues_without_metadata_and_explain_reports_it",
    ),
    "A bookie is lost": ((Code.BOOKIES_NOT_USABLE,), "test_operator_sees_frozen_killed_and_read_only_bookies"),
    "Half of the brokers are killed": (
        (Code.OWNER_NOT_ANSWERING,),
        "test_explain_after_loss_of_half_of_the_brokers_names_them_until_sessions_end",
    ),
    "A broker starts with another load manager": (
        REFUSED_START,
        "test_broker_refuses_to_join_under_another_load_manager",
    ),
    "another load manager joins later": (
        (Code.LOAD_MANAGER_CONFLICT,),
        "test_explain_names_another_load_manager_and_unusable_registrations",
    ),
    "wrong `clusterName`": (
        REFUSED_START,
        "test_unprepared_foreign_and_newer_stores_are_refused_and_stay_unchanged",
    ),
    "transferred to another broker": (
        (Code.BUNDLE_UNLOADING,),
        "test_explain_at_any_broker_names_owner_bundle_and_reason",
    ),
}


def rows() -> list[tuple[str, str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [(situation, signs) for situation, signs, _ in cells if situation != "Situation"]


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_has_row_with_codes_and_test(fault: str) -> None:
    codes, test = FAULTS[fault]
    found = [signs for situation, signs in rows() if fault in situation]
    assert len(found) == 1, f"{len(found)} rows for {fault!r}"
    assert all(f"`{code.value}`" in found[0] for code in codes)
    assert test in TESTS


def test_rows_name_codes_that_exist() -> None:
    known = {code.value for code in Code}
    named = {text for _, signs in rows() for text in re.findall(r"`([a-z-]+)`", signs) if "-" in text}
    assert named <= known
