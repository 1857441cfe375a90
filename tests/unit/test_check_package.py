"""The checks of `make package` find a wheel that lacks a file, contains tests, or has the tag of one Python version."""

import zipfile
from pathlib import Path

import pytest
from tools import check_package
from tools.check_package import COMPILED, PackageError, check_wheel, source_files

EXPECTED = ("pybroker/__init__.py", "pybroker/py.typed", "pybroker/console/index.html")
CONFIGURATION = "pybroker-1.data/data/share/pybroker/broker.conf"
COMPLETE = (*EXPECTED, *COMPILED, CONFIGURATION, "pybroker-1.dist-info/RECORD")


def wheel_of(directory: Path, *names: str, tag: str = "cp311-abi3-linux_x86_64") -> Path:
    path = directory / f"pybroker-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_complete_wheel_passes(tmp_path: Path) -> None:
    assert check_wheel(wheel_of(tmp_path, *COMPLETE), EXPECTED, is_compiled=True) == len(COMPLETE)


@pytest.mark.parametrize("missing", [*EXPECTED, *COMPILED, CONFIGURATION])
def test_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    wheel = wheel_of(tmp_path, *(name for name in COMPLETE if name != missing))
    with pytest.raises(PackageError, match=missing.rpartition("/")[2]):
        check_wheel(wheel, EXPECTED, is_compiled=True)


def test_compiled_parts_are_needed_only_with_a_compiler(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, *(name for name in COMPLETE if name not in COMPILED))
    assert check_wheel(wheel, EXPECTED, is_compiled=False) == len(COMPLETE) - len(COMPILED)


@pytest.mark.parametrize(
    "name", ["tests/unit/test_x.py", "pybroker/tests/__init__.py", "pybroker/conftest.py", "tools/lanes.py"]
)
def test_wheel_with_tests_or_tools_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PackageError, match=name):
        check_wheel(wheel_of(tmp_path, *COMPLETE, name), EXPECTED, is_compiled=True)


def test_tag_of_one_python_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="stable ABI"):
        check_wheel(wheel_of(tmp_path, *COMPLETE, tag="cp311-cp311-linux_x86_64"), EXPECTED, is_compiled=True)


def test_source_files_are_those_of_the_packages_without_build_output() -> None:
    files = source_files(check_package.ROOT / "src")
    assert {"pybroker/py.typed", "pybroker/console/index.html", "pyspark_pulsar/__init__.py"} <= files
    assert not [name for name in files if name.endswith((".so", ".pyc")) or "egg-info" in name]


def test_failed_command_is_reported_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"failed with 3:\nreason"):
        check_package.run(["sh", "-c", "echo reason; exit 3"], tmp_path)


def test_variables_of_this_environment_do_not_reach_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"PYTHONPATH", "PULSAR_PREFIX_dataDirectory", "PYBROKER_PROFILE", "VIRTUAL_ENV"}
    for name in names:
        monkeypatch.setenv(name, "x")
    assert "PATH" in check_package.clean_environment()
    assert not names & set(check_package.clean_environment())
