"""In an environment that is not activated Spark starts `python3` of the PATH: `register` uses the driver's interpreter instead."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pulsar
import pytest
from tests.spark.conftest import ROOT
from tests.spark.sent import publish
from tests.support.broker_process import BrokerProcess

from pybroker.spark.worker_python import WrongInterpreter, check_interpreter

pytestmark = pytest.mark.spark
READS_WITHOUT_ACTIVATION = """
import json, sys
from tests.spark.conftest import new_session
import pybroker.spark
options = json.loads(sys.argv[1])
spark = new_session("local[1]", is_activated=False)
try:
    spark.read.format("pulsar").options(**options).load()
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" in str(error))
print(spark.read.format(pybroker.spark.register(spark)).options(**options).load().count())
spark.stop()
"""


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """The interpreter of an environment without any package."""
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    return tmp_path / "other/bin/python3"


def test_interpreter_without_the_package_is_named_with_what_to_set(other_python: Path) -> None:
    with pytest.raises(WrongInterpreter, match=rf"{other_python}.*No module named.*PYSPARK_PYTHON={sys.executable}"):
        check_interpreter(str(other_python))
    with pytest.raises(WrongInterpreter, match="no-such-python"):
        check_interpreter("no-such-python")
    check_interpreter(sys.executable)


def test_pyspark_without_data_sources_is_named_with_the_version_that_has_them(tmp_path: Path) -> None:
    (tmp_path / "pyspark/sql").mkdir(parents=True)
    (tmp_path / "pyspark/__init__.py").write_text("__version__ = '3.5.6'\n")
    (tmp_path / "pyspark/sql/__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import pybroker.spark; pybroker.spark.register(None)"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "PySpark 3.5.6: data sources in Python begin with PySpark 4.0" in ran.stderr


def test_session_of_an_environment_that_is_not_activated_reads_after_register(
    broker: BrokerProcess, client: pulsar.Client, topic: str, other_python: Path
) -> None:
    publish(client, topic, 20)
    options = {"service.url": broker.url, "admin.url": broker.http_url, "topic": topic}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    environment["PATH"] = f"{other_python.parent}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-c", READS_WITHOUT_ACTIVATION, json.dumps(options)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert ran.stdout.split() == ["True", "20"], ran.stderr[-4000:]
