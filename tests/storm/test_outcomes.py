"""What the table of a storm says, and what counts as a fault."""

from tests.storm.outcomes import OK, TIMEOUT, Outcome, Results, described, percentile, table


def outcomes(*results: str, action: str = "subscribe", is_expected: bool = True) -> list[Outcome]:
    return [Outcome("S", action, result, 10.0 * place, is_expected) for place, result in enumerate(results, 1)]


def test_a_percentile_is_a_value_that_was_there() -> None:
    assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 3, 4, 4]
    assert percentile([], 0.5) == 0


def test_what_nobody_expects_stands_out() -> None:
    expected = outcomes(OK, "ConsumerBusy", OK)
    unexpected = outcomes("UnknownError", is_expected=False)
    assert described(expected + unexpected + outcomes(TIMEOUT)) == [
        "2 ok, 1 ConsumerBusy, 1 **UnknownError**, 1 **time-out**",
        "10 / 30 / 30",
    ]


def test_timeouts_unexpected_answers_and_findings_are_faults_and_expected_errors_are_none() -> None:
    results = Results("b", outcomes(OK, "ConsumerBusy") + outcomes("UnknownError", "UnknownError", is_expected=False))
    results.find("S", [])
    assert results.faults() == ["2 x S: subscribe: UnknownError"]
    results.outcomes += outcomes(TIMEOUT)
    results.find("at rest", ["3 connections are left"])
    expected = ["2 x S: subscribe: UnknownError", "1 x S: subscribe: time-out", "at rest: 3 connections are left"]
    assert results.faults() == expected
    assert results.timeouts() == 1


def test_two_brokers_stand_side_by_side_also_where_one_has_nothing() -> None:
    rows = table([Results("a", outcomes(OK)), Results("b", outcomes(OK) + outcomes(OK, action="send"))]).splitlines()
    assert rows[0] == "| scenario | action | a | p50 / p99 / max ms | b | p50 / p99 / max ms |"
    assert rows[2:] == [
        "| S | subscribe | 1 ok | 10 / 10 / 10 | 1 ok | 10 / 10 / 10 |",
        "| S | send |  |  | 1 ok | 10 / 10 / 10 |",
    ]


def test_results_are_the_same_after_they_were_kept() -> None:
    results = Results("b", outcomes(OK))
    results.count("S", {"again": 3})
    results.find("S", ["lost"])
    assert Results.from_json(results.to_json()) == results
