"""Tests of the comparison with Apache Pulsar, without brokers."""

import pytest

from benchmarks import compare
from benchmarks.perf_cases import CASES, CPU, P99, RATE, PerfFailed, steady_rate


def test_documentation_has_a_ratio_of_processor_time_for_each_case() -> None:
    documented = compare.documented_ratios(compare.PAGE.read_text())
    assert set(documented) == set(CASES)
    assert all(0 < float(ratios[CPU].split()[0]) < 2 for ratios in documented.values())
    assert {case for case, ratios in documented.items() if ratios[RATE]} == set(CASES) - {"paced_1k"}
    assert documented["paced_1k"][P99]


def test_table_divides_figures_of_the_same_round() -> None:
    rounds = {
        "publish_1k": [
            ({CPU: 3.0, RATE: 300.0, P99: 1.0}, {CPU: 10.0, RATE: 100.0, P99: 2.0}),
            ({CPU: 8.0, RATE: 100.0, P99: 3.0}, {CPU: 10.0, RATE: 100.0, P99: 2.0}),
            ({CPU: 4.0, RATE: 200.0, P99: 2.0}, {CPU: 10.0, RATE: 100.0, P99: 2.0}),
        ],
        "catch_up": [({CPU: 1.0}, {CPU: 2.0})],
    }
    documented = {"publish_1k": {CPU: "0.41", RATE: "1.35", P99: ""}}
    assert compare.table(rounds, "sync, sync", documented).splitlines()[2:] == [
        "| publish_1k | sync, sync | 0.40 (0.30 to 0.80) | 2.00 (1.00 to 3.00) | 1.00 (0.50 to 1.50) | 3 | 0.41, 1.35, - |",
        "| catch_up | sync, sync | 0.50 |  |  | 1 | -, -, - |",
    ]
    assert compare.table(rounds, "sync, nosync", documented).splitlines()[2].endswith("| -, -, - |")


def test_too_short_load_is_an_error() -> None:
    with pytest.raises(PerfFailed, match="no rates"):
        steady_rate("no statistics")


def test_unknown_case_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--only", "unknown"]) == 2
    assert "publish_1k" in capsys.readouterr().err


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert compare.main([]) == 2
    assert "JDK 17" in capsys.readouterr().err
