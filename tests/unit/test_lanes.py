"""Test lanes: each test file belongs to exactly one, and a run reports failures and skipped parts."""

from pathlib import Path

import pytest
from tools import lanes

ROOT = Path(__file__).resolve().parents[2]


def test_each_test_file_belongs_to_one_lane() -> None:
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "benchmarks").rglob("test_*.py")]
    names = [str(path.relative_to(ROOT)) for path in files if "data" not in path.relative_to(ROOT).parts]
    assert names
    for name in names:
        assert lanes.lane_of(name) in lanes.LANES


def test_directories_of_lanes_exist_and_are_listed_once() -> None:
    directories = [directory for of_lane in lanes.LANES.values() for directory in of_lane]
    assert len(directories) == len(set(directories))
    assert [directory for directory in directories if not (ROOT / directory).is_dir()] == []


def test_unit_lane_leaves_out_the_unit_tests_of_analytics() -> None:
    assert lanes.lane_of("tests/unit/columns/test_decoder.py") == "analytics"
    assert lanes.lane_of("tests/unit/model/test_names.py") == "unit"
    assert "--ignore=tests/unit/columns" in lanes.arguments_of("unit")


def test_file_outside_of_all_lanes_is_an_error() -> None:
    with pytest.raises(KeyError):
        lanes.lane_of("tests/unknown/test_new.py")


def test_run_lists_failed_lane_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        lanes, "COMMANDS", {"good": (("python", "-c", "print('fine')"),), "bad": (("python", "-c", "1/0"),)}
    )
    monkeypatch.setattr(lanes, "LANES", {})
    assert lanes.main(["bad", "good"]) == 1
    listed = capsys.readouterr().out.partition("Lanes of this run:")[2].splitlines()
    assert [line.split()[:2] for line in listed[1:3]] == [["bad", "FAILED"], ["good", "ok"]]
    assert lanes.main(["good"]) == 0
    assert "Lanes that were not asked for: bad" in capsys.readouterr().out


def test_counts_and_skipped_markers_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "analytics").mkdir()
    (tmp_path / "analytics" / "test_one.py").write_text(
        "import pytest\n\ndef test_a(): pass\n\ndef test_b(): assert False\n\n@pytest.mark.spark\ndef test_c(): assert False\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: x\n    spark: x\n")
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    monkeypatch.setattr(lanes, "LANES", {"analytics": ("analytics",)})
    monkeypatch.setattr(lanes, "missing_programs", lambda markers, jars: {"spark": "no Java", "go": "no Go"})
    assert lanes.main(["analytics", "-p", "no:cacheprovider"]) == 1
    listed = capsys.readouterr().out.partition("Lanes of this run:")[2]
    assert "1 failed, 1 passed" in listed
    assert "skipped tests marked spark: no Java" in listed
    assert "no Go" not in listed
    assert "Total: 1 passed, 1 failed, 0 skipped" in listed


def test_programs_are_looked_for_only_where_a_lane_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes.shutil, "which", lambda program: None)  # type: ignore[attr-defined]
    assert lanes.missing_programs((), tmp_path / "jars") == {}
    assert set(lanes.missing_programs(lanes.MARKERS[lanes.LONG], tmp_path / "jars")) == {"spark", "java", "go"}


def test_lane_without_selected_tests_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    monkeypatch.setattr(lanes, "LANES", {"unit": ("empty",)})
    monkeypatch.setattr(lanes, "missing_programs", lambda markers, jars: {})
    assert lanes.main(["unit", "-p", "no:cacheprovider", "-q"]) == 0


def test_test_that_hangs_ends_the_run_with_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "test_one.py").write_text(
        "import subprocess, threading\n\ndef test_a(): pass\n\ndef test_that_hangs():\n"
        "    subprocess.Popen(['sleep', '20'])  # keeps the output open\n    threading.Event().wait(60)\n\ndef test_c(): pass\n"
    )
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    monkeypatch.setattr(lanes, "LANES", {"clients": ("clients",)})
    monkeypatch.setattr(lanes, "TEST_LIMIT_S", 1)
    monkeypatch.setattr(lanes, "missing_programs", lambda markers, jars: {})
    assert lanes.main(["clients", "-p", "no:cacheprovider"]) == 1
    printed = capsys.readouterr().out
    assert "in test_that_hangs" in printed
    assert "Total: 1 passed, 1 failed, 0 skipped" in printed


def test_command_that_prints_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanes, "COMMANDS", {"silent": (("python", "-c", "import time; time.sleep(60)"),)})
    monkeypatch.setattr(lanes, "LANES", {})
    monkeypatch.setattr(lanes, "SILENT_S", 0.5)
    monkeypatch.setattr(lanes, "POLL_S", 0.1)
    assert lanes.main(["silent"]) == 1
    printed = capsys.readouterr().out
    assert "printed nothing for 0.5 s and was ended" in printed
    assert "silent     FAILED" in printed
