"""Selection and check of the Python interpreter that Spark starts for data sources.

Spark starts the interpreter in `PYSPARK_PYTHON`, or `python3` from the PATH if the variable is not set, even if the
driver runs in a virtual environment. If that environment is not activated, the interpreter cannot import this package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark import SparkFiles
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK_TIMEOUT_S = 60
_CHECK = "import sys; sys.path[1:1] = sys.argv[1:]; import pyarrow, pybroker.spark.reader.reader_options"


class WrongInterpreter(RuntimeError):
    """The interpreter that Spark starts cannot import this package. The text names the interpreter and the setting to
    change."""


def use_worker_python(spark: SparkSession) -> None:
    """Run workers of a local session in this interpreter, unless another one is configured. Raises WrongInterpreter if
    the interpreter of the workers cannot import this package.
    """
    try:
        context = spark.sparkContext
    except (AttributeError, NotImplementedError, PySparkException):
        return  # Spark Connect: the server starts the workers.
    configured = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None)
    if configured is None and context.master.startswith("local"):
        configured = sys.executable
    if configured is not None:
        context.pythonExec = configured
    root = SparkFiles.getRootDirectory()
    check_interpreter(context.pythonExec, [each for each in sys.path if each.startswith(root)])


def check_interpreter(name: str, paths: Sequence[str] = ()) -> None:
    """Raise WrongInterpreter unless the named interpreter can import this package, with `paths` added to its search
    path."""
    found = shutil.which(name)
    if found == sys.executable:
        return
    reason = "it does not exist"
    if found is not None:
        command = [found, "-c", _CHECK, *paths]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        else:
            if ran.returncode == 0:
                return
            reason = (ran.stderr.strip().splitlines() or ["it exited with an error"])[-1]
    raise WrongInterpreter(
        f"Spark starts {found or name} for Python data sources, which cannot import pybroker ({reason}). Activate the "
        f"environment that has pybroker, or set PYSPARK_PYTHON={sys.executable} before the Spark session is created; "
        "executors on other machines need an interpreter with pybroker at that path, too"
    )
