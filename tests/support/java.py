"""Execution of Java programs with the published jars, by the class paths that the `baseline` script resolved.

`baseline setup` resolves them once, for the command-line tools and for the reference broker. Needs Java 17.
"""

import os
import pathlib

_JAVA_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dpulsar.log.level=error")


def java_command(program: pathlib.Path, *arguments: str) -> list[str]:
    """Return the command that compiles and runs a single-file program with client, admin client and command-line
    tools.
    """
    # The client does not include the Protobuf runtime for its Protobuf schemas; the broker does.
    protobuf = [jar for jar in _jars("server") if pathlib.Path(jar).name.startswith("protobuf-java-")]
    return ["java", *_JAVA_OPTIONS, "-cp", os.pathsep.join(_jars("tools") + protobuf), str(program), *arguments]


def _jars(side: str) -> list[str]:
    """Return the jars. Raises an error with instructions if there are none."""
    home = pathlib.Path(os.environ.get("PULSAR_BASELINE_HOME", pathlib.Path.home() / ".cache/pulsar-baseline"))
    path = home / side / "cp.txt"
    if not path.exists():
        raise FileNotFoundError(f"no Java class path in {path}: run `baseline setup`, or set PULSAR_BASELINE_HOME")
    return path.read_text().strip().split(os.pathsep)
