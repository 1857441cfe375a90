"""The comparison itself; needs neither broker nor Java."""

from pathlib import Path

from tests.differential.compare import ABSENT, Difference, differences
from tests.differential.harness import SCENARIOS
from tests.differential.intended import INTENDED, markdown
from tests.differential.normalise import Json, Normaliser
from tests.differential.run import REPOSITORY


def test_ids_become_ordinals_in_order_of_appearance() -> None:
    normaliser = Normaliser({})
    first = normaliser.value({"message_id": {"ledgerId": "7", "entryId": "0", "partition": -1}})
    assert first == {"message_id": {"position": "<id 1>"}}
    assert normaliser.position(9, 4) == "<id 2>"
    assert normaliser.position(7, 0) == "<id 1>"
    assert normaliser.position(2**64 - 1, 2**64 - 1) == "<none>"


def test_what_says_the_same_as_nothing_is_left_out() -> None:
    normaliser = Normaliser({})
    none = str(2**64 - 1)
    for highest in (none, "0", "6", "7"):
        assert normaliser.value({"sequence_id": "7", "highest_sequence_id": highest}) == {"sequence_id": "7"}
    batch: Json = {"sequence_id": "7", "highest_sequence_id": "9", "partition": 0}
    assert normaliser.value(batch) == batch
    assert normaliser.value({"partition": -1, "batch_index": -1, "first": -1}) == {"first": -1}


def test_actions_have_no_order() -> None:
    normaliser = Normaliser({})
    assert normaliser.value(["produce", "consume"]) == ["consume", "produce"]
    unordered: Json = ["produce", {"b": []}, "a"]
    assert normaliser.value(unordered) == unordered


def test_addresses_times_and_texts_do_not_count() -> None:
    normaliser = Normaliser({"http://127.0.0.1:1": "<http url>", "127.0.0.1:1": "<http>"})
    said: Json = {
        "url": "http://127.0.0.1:1/x",
        "id": "127.0.0.1:1",
        "publish_time": "17",
        "msgRateIn": 2.5,
        "reason": "why",
    }
    assert normaliser.value(said) == {
        "url": "<http url>/x",
        "id": "<http>",
        "publish_time": "<volatile>",
        "msgRateIn": "<volatile>",
        "reason": "<text>",
    }


def test_generated_names_keep_who_is_who() -> None:
    normaliser = Normaliser({})
    assert normaliser.value(["standalone-1-4", "p", "standalone-1-5", "standalone-1-4"]) == [
        "<generated name 1>",
        "p",
        "<generated name 2>",
        "<generated name 1>",
    ]


def test_equal_traces_have_no_differences() -> None:
    trace: list[tuple[str, Json]] = [("a", {"x": [1, {"y": None}]}), ("b", [])]
    assert differences(trace, list(trace)) == []


def test_a_difference_is_named_by_step_and_path() -> None:
    found = differences([("step", {"x": [1, 2]}), ("step", 1)], [("step", {"x": [1, 3]}), ("step", True)])
    assert found == [Difference("step: x[1]", 2, 3), Difference("step #2", 1, True)]


def test_what_only_one_broker_says_is_a_difference() -> None:
    assert differences([("a", {"x": 1})], [("a", {"x": 1, "y": 2})]) == [Difference("a: y", ABSENT, 2)]
    assert differences([("a", 1), ("b", 1)], [("a", 1)]) == [Difference("b", 1, ABSENT)]


def test_every_theme_has_scenarios_and_every_intended_difference_a_reason() -> None:
    modules = {each.run.__module__.removeprefix("tests.differential.") for each in SCENARIOS.values()}
    assert modules == {path.stem for path in Path(__file__).parent.glob("scenarios_*.py")}
    assert all(row.reason for row in INTENDED)


def test_the_documentation_shows_the_intended_differences() -> None:
    assert markdown() in (REPOSITORY / "docs/contributing/differential.md").read_text(encoding="utf-8")
