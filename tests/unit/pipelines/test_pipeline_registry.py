"""Pipelines are found by name, and what is not installed is told by what to install."""

from types import ModuleType

import pytest

from pybroker.cli import main
from pybroker.pipelines import pipeline_registry


def test_a_pipeline_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "sea", "--once"])
    assert ended.value.code == 2
    assert "lake" in capsys.readouterr().err


def test_a_missing_library_is_told_by_the_extra_that_brings_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.parquet")

    monkeypatch.setattr(pipeline_registry, "import_module", missing)
    assert main(["pipeline", "lake", "--once"]) == 2
    assert "pip install 'pybroker[tables]'" in capsys.readouterr().err


def test_a_module_of_our_own_that_is_missing_is_no_matter_of_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'pybroker.lake.x'", name="pybroker.lake.x")

    monkeypatch.setattr(pipeline_registry, "import_module", missing)
    with pytest.raises(ModuleNotFoundError):
        main(["pipeline", "lake"])


def test_the_options_of_a_pipeline_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "lake", "--help"])
    assert ended.value.code == 0
    assert "--partition-by" in capsys.readouterr().out
