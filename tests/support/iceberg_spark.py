"""The newest Spark that the Iceberg jar supports, installed once in an environment in the user's cache.

This Spark (4.1) cannot run this project's data source, which needs 4.2.
"""

import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

HOME = Path.home() / ".cache" / "pybroker-iceberg-spark"
MAVEN = "https://repo1.maven.org/maven2/"
JARS = (
    "org/apache/iceberg/iceberg-spark-runtime-4.1_2.13/1.12.0/iceberg-spark-runtime-4.1_2.13-1.12.0.jar",
    "org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar",
)


class NoIcebergSpark(Exception):
    """The environment is not available."""


def iceberg_spark() -> tuple[Path, str]:
    """Return the environment's Python, and the jars separated by commas. Raises NoIcebergSpark."""
    if shutil.which("java") is None:
        raise NoIcebergSpark("Spark needs Java 17")
    python = HOME / "venv" / "bin" / "python"
    try:
        HOME.mkdir(parents=True, exist_ok=True)
        for jar in JARS:
            target = HOME / jar.rsplit("/", 1)[1]
            if not target.exists():
                partial = target.with_suffix(".part")
                urllib.request.urlretrieve(MAVEN + jar, partial)
                partial.rename(target)
        if subprocess.run([python, "-c", "import pyspark"], check=False, capture_output=True).returncode:
            subprocess.run([sys.executable, "-m", "venv", str(HOME / "venv")], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "pyspark==4.1.4"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoIcebergSpark(f"no Spark 4.1 with the Iceberg jar: {error}") from error
    return python, ",".join(str(HOME / jar.rsplit("/", 1)[1]) for jar in JARS)
