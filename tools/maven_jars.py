"""Class paths of Maven projects, for the Java programs of tests and benchmarks.

Maven downloads the jars once into its local repository. The class path is kept in the user's cache directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

RESOLVE_DEADLINE_S = 600.0


class JarsMissing(Exception):
    """The class path cannot be resolved on this machine; the message says what is missing."""


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pybroker-tests"


def class_path(project: Path) -> str:
    """Return the class path of a Maven project. Raises JarsMissing."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise JarsMissing(f"needs the program `{program}` on the PATH (Java 17, Maven)")
    digest = hashlib.sha256(project.read_bytes()).hexdigest()[:16]
    directory = cache_directory() / f"{project.stem}-{digest}"
    directory.mkdir(parents=True, exist_ok=True)
    found = directory / "class-path.txt"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may begin at once
        if found.exists() and all(Path(jar).exists() for jar in found.read_text().split(os.pathsep)):
            return found.read_text()
        shutil.copy(project, directory / "pom.xml")
        command = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=resolved.txt"]
        try:
            result = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, timeout=RESOLVE_DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise JarsMissing(
                f"the jars of {project.name} were not resolved within {RESOLVE_DEADLINE_S:g} s"
            ) from error
        if result.returncode:
            raise JarsMissing(f"Maven cannot resolve the jars of {project.name}: {result.stdout[-300:]}")
        found.write_text((directory / "resolved.txt").read_text().strip())
        return found.read_text()
