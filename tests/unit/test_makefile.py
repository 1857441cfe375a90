"""`make` on a fresh clone: what it installs for which command, and what it says where there is no Python for it."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("bash", "cat", "chmod", "make", "mkdir", "rm", "sh", "touch")
# Makes an environment whose python writes down what it is asked to do; what is run in it does nothing.
PYTHON = """#!/bin/bash
case "$*" in
    *version_info*) exit {verdict} ;;
    "-m venv .venv")
        mkdir -p .venv/bin
        printf '#!/bin/bash\necho "$*" >> calls\n' > .venv/bin/python
        printf '#!/bin/bash\n' > .venv/bin/pybroker
        chmod +x .venv/bin/python .venv/bin/pybroker
        echo "{name} $*" >> calls ;;
esac
"""


class Clone:
    """A fresh clone as far as `make` looks at it, and a PATH with nothing but what a test put there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "clone"
        self.programs = directory / "bin"
        self.directory.mkdir()
        self.programs.mkdir()
        for name in ("Makefile", "pyproject.toml", "requirements-dev.lock"):
            shutil.copy(ROOT / name, self.directory)
        for name in PROGRAMS:
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)

    def has_python(self, name: str, *, usable: bool = True) -> None:
        program = self.programs / name
        program.write_text(PYTHON.format(name=name, verdict=0 if usable else 1))
        program.chmod(0o755)

    def make(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "PYTHON"))}
        return subprocess.run(
            ["make", *arguments],
            cwd=self.directory,
            env={**environment, "PATH": str(self.programs)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def installed(self, *arguments: str) -> list[str]:
        """What `make` has told pip to install, which must be held to the locked versions."""
        calls = self.directory / "calls"
        calls.unlink(missing_ok=True)
        ended = self.make(*arguments)
        assert ended.returncode == 0, ended.stderr
        lines = calls.read_text().splitlines() if calls.exists() else []
        pip = [line for line in lines if line.startswith("-m pip install")]
        assert all("--constraint requirements-dev.lock" in line for line in pip)
        return [line.rpartition(" ")[2] for line in pip]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


ALL = [".[client,test,dev,tables]"]
BROKER = ["."]


def test_serving_installs_what_a_broker_needs_and_tests_add_the_rest_once(clone: Clone) -> None:
    clone.has_python("python3.11")
    assert clone.installed("serve") == BROKER
    assert clone.installed("serve") == []
    assert clone.installed("test") == ALL
    assert clone.installed("test") == clone.installed("serve") == []


def test_after_the_tests_serving_has_nothing_to_install(clone: Clone) -> None:
    clone.has_python("python3.11")
    assert clone.installed("test") == ALL
    assert clone.installed("serve") == clone.installed("test") == []


def test_site_installs_its_tools_beside_those_of_the_tests(clone: Clone) -> None:
    clone.has_python("python3.11")
    assert clone.installed("docs") == [*ALL, ".[docs]"]
    assert clone.installed("docs") == clone.installed("test") == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "requirements-dev.lock"])
def test_changed_requirements_are_installed_by_whoever_comes_first(clone: Clone, changed: str) -> None:
    clone.has_python("python3.11")
    clone.installed("serve")
    clone.installed("test")
    stamps = [clone.directory / ".venv" / name for name in (".installed", ".installed-serve")]
    for stamp in stamps:  # As if they had been made a while ago: make compares dates.
        os.utime(stamp, (1, 1))
    assert clone.installed("serve") == BROKER
    assert clone.installed("test") == ALL
    assert clone.installed("serve") == clone.installed("test") == []


@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3.13", "python3"])
def test_any_python_that_is_new_enough_will_do(clone: Clone, name: str) -> None:
    clone.has_python(name)
    clone.installed("serve")
    assert f"{name} -m venv .venv" in (clone.directory / "calls").read_text().splitlines()


def test_a_python_that_is_too_old_is_passed_over(clone: Clone) -> None:
    clone.has_python("python3.11", usable=False)  # A launcher of a version that is not installed, for example.
    clone.has_python("python3")
    clone.installed("serve")
    assert "python3 -m venv .venv" in (clone.directory / "calls").read_text().splitlines()


@pytest.mark.parametrize("target", ["serve", "test", "check"])
def test_where_there_is_no_python_make_says_what_helps(clone: Clone, target: str) -> None:
    clone.has_python("python3", usable=False)
    ended = clone.make(target)
    assert ended.returncode == 2
    for word in ("3.11 or newer", "python3.11 python3.12 python3.13 python3", "apt install", "brew install", "PYTHON="):
        assert word in ended.stderr
    assert not (clone.directory / ".venv").exists()


def test_a_named_python_that_cannot_be_used_is_refused_by_name(clone: Clone) -> None:
    clone.has_python("python3.11")
    clone.has_python("python2", usable=False)
    ended = clone.make("serve", "PYTHON=python2")
    assert ended.returncode == 2
    assert "Looked for: python2." in ended.stderr
    assert "python2 -m venv" not in ended.stdout


def test_the_licence_is_there_as_the_metadata_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text.splitlines()) == 202
    # A container is built from what these two let through.
    assert "!LICENSE" in (ROOT / ".dockerignore").read_text().splitlines()
    assert " LICENSE " in (ROOT / "docker" / "Dockerfile").read_text()
