"""Builds sdist and wheel into `dist`, and uses the wheel like a user: `make package`.

Checks that the wheel contains each file of `src` and `conf/broker.conf`, the compiled parts where there is a C
compiler, and no tests; that it installs into an empty environment with only the dependencies of
`docker/requirements.lock`; that the installed broker starts, answers `/live` and `/console/`, and stores a message; and
that a newer Python, if the machine has one, can import the compiled parts. The first failed check ends the run with
exit code 1.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LOCK = ROOT / "docker" / "requirements.lock"
STABLE_ABI_TAG = "-cp311-abi3-"
COMPILED = (
    "pybroker/columns/_packer.abi3.so",
    "pybroker/columns/_scanner.abi3.so",
    "pybroker/wire/_core.abi3.so",
)
CONFIGURATION = "data/share/pybroker/broker.conf"
PACKAGES = ("pybroker", "pyspark_pulsar")
NOT_PACKAGED = {".so", ".pyc"}
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
OWN_VARIABLES = ("PYTHON", "PULSAR_", "PYBROKER_", "VIRTUAL_ENV")
"""Variables of this environment that must not reach the installed package."""
MESSAGE = "from the installed package"
IMPORT_COMPILED = """
import sys
from importlib import machinery, util
for path in sys.argv[1:]:
    name = path.rpartition("/")[2].partition(".")[0]
    spec = util.spec_from_file_location(name, path, loader=machinery.ExtensionFileLoader(name, path))
    spec.loader.exec_module(util.module_from_spec(spec))
"""
"""Runs without the package, whose dependencies the other Python lacks."""


class PackageError(Exception):
    """A check failed."""


def source_files(source: Path) -> set[str]:
    """Return the files below `src` that the wheel must contain."""
    paths = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    return {
        path.as_posix()
        for path in paths
        if path.suffix not in NOT_PACKAGED
        and not path.parts[0].endswith(".egg-info")
        and "__pycache__" not in path.parts
    }


def has_compiler() -> bool:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(str(command).split()[0]) is not None


def is_test(name: str) -> bool:
    top, *_ = path = PurePosixPath(name).parts
    return (top not in PACKAGES and not top.startswith("pybroker-")) or "tests" in path or path[-1] == "conftest.py"


def check_wheel(wheel: Path, expected: Collection[str], *, is_compiled: bool) -> int:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    needed = {*expected, *(COMPILED if is_compiled else ())}
    if missing := sorted(needed - names):
        raise PackageError(f"{wheel.name} lacks {', '.join(missing)}")
    if not any(name.endswith(CONFIGURATION) for name in names):
        raise PackageError(f"{wheel.name} lacks conf/broker.conf as {CONFIGURATION}")
    if tests := sorted(name for name in names if is_test(name)):
        raise PackageError(f"{wheel.name} contains tests or other files: {', '.join(tests)}")
    if STABLE_ABI_TAG not in wheel.name:
        raise PackageError(f"{wheel.name} does not have the tag of the stable ABI: {STABLE_ABI_TAG}")
    return len(names)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}


def run(command: list[str | Path], directory: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    if done.returncode:
        raise PackageError(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


def build(target: Path, directory: Path) -> Path:
    for old in (*target.glob("pybroker-*.whl"), *target.glob("pybroker-*.tar.gz")):
        old.unlink()
    # Not in the root of the checkout, where `build` may be a directory.
    run([sys.executable, "-m", "build", "--outdir", target, ROOT], directory)
    wheels, sources = list(target.glob("pybroker-*.whl")), list(target.glob("pybroker-*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        raise PackageError(f"{target} does not have one wheel and one sdist")
    return wheels[0]


def install(wheel: Path, directory: Path) -> Path:
    environment = directory / "environment"
    run([sys.executable, "-m", "venv", environment], directory, clean_environment())
    programs = environment / "bin"
    pip: list[str | Path] = [programs / "python", "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    run([*pip, "install", *quiet, "--require-hashes", "--requirement", LOCK], directory, clean_environment())
    run([*pip, "install", *quiet, "--no-deps", wheel], directory, clean_environment())
    run([*pip, "check"], directory, clean_environment())
    return programs


@contextmanager
def running_broker(programs: Path, directory: Path) -> Iterator[str]:
    ready_file, log = directory / "ready.json", directory / "broker.log"
    configuration = programs.parent / "share" / "pybroker" / "broker.conf"
    command: list[str | Path] = [
        programs / "pybroker",
        "serve",
        "--config",
        configuration,
        "--data",
        directory / "data",
    ]
    command += ["--port", "0", "--http-port", "0", "--ready-file", ready_file]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=directory, env=clean_environment(), stdout=output, stderr=output) as process,
    ):
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while not ready_file.exists():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise PackageError(f"the broker did not start:\n{log.read_text()}")
                time.sleep(0.02)
            yield str(json.loads(ready_file.read_text())["http_url"])
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
        finally:
            process.kill()
    if process.returncode or "Traceback" in log.read_text():
        raise PackageError(f"the broker ended with {process.returncode}:\n{log.read_text()}")


def answer(url: str, *, method: str = "GET") -> str:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as response:
        return str(response.read().decode())


def use(programs: Path, directory: Path) -> str:
    environment = clean_environment()
    version = run([programs / "pybroker", "--version"], directory, environment).split()[-1]
    with running_broker(programs, directory) as http_url:
        if answer(f"{http_url}/live") != "ok" or "<html" not in answer(f"{http_url}/console/"):
            raise PackageError("/live or /console/ does not answer as documented")
        answer(f"{http_url}/admin/v2/persistent/public/default/installed/subscription/reader", method="PUT")
        run([programs / "pybroker", "produce", "installed", MESSAGE, "--url", http_url], directory, environment)
        shown = run([programs / "pybroker", "peek", "installed", "reader", "--url", http_url], directory, environment)
        if MESSAGE not in shown:
            raise PackageError(f"peek does not show the message:\n{shown}")
    return version


def newer_python() -> str | None:
    versions = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python3"))
    names = [f"python3.{minor}" for minor in range(sys.version_info.minor + 1, sys.version_info.minor + 5)]
    for candidate in (*filter(None, map(shutil.which, names)), *map(str, versions)):
        code = f"import sys; sys.exit(sys.version_info < (3, {sys.version_info.minor + 1}))"
        done = subprocess.run([candidate, "-c", code], check=False, capture_output=True, env=clean_environment())
        if done.returncode == 0:
            return candidate
    return None


def import_compiled(python: str, wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        paths = [archive.extract(name, directory / "unpacked") for name in COMPILED]
    run([python, "-c", IMPORT_COMPILED, *paths], directory, clean_environment())


def main() -> int:
    is_compiled = has_compiler()
    with tempfile.TemporaryDirectory(prefix="pybroker-package-") as name:
        directory = Path(name)
        try:
            wheel = build(DIST, directory)
            count = check_wheel(wheel, source_files(ROOT / "src"), is_compiled=is_compiled)
            parts = "with the compiled parts" if is_compiled else "without compiled parts: there is no C compiler"
            print(f"built      {wheel.name}, {count} files, {parts}", flush=True)
            programs = install(wheel, directory)
            print("installed  with the hashes of docker/requirements.lock", flush=True)
            print(f"used       pybroker {use(programs, directory)}: served a message and the console", flush=True)
            python = newer_python()
            if not is_compiled or python is None:
                print("not tried  the compiled parts with a newer Python: there is none, or no C compiler")
            else:
                import_compiled(python, wheel, directory)
                version = run([python, "--version"], directory, clean_environment()).strip()
                print(f"imported   the compiled parts with {version}")
        except PackageError as error:
            print(f"FAILED     {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
