"""One Spark session and one broker for all tests; where Java is missing they are left out, saying so."""

import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

_serial = itertools.count(1)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session of two cores."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 on the PATH")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker that all tests share; each uses topics of its own."""
    settings = {
        "brokerDeduplicationEnabled": "true",
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running() as process:
        yield process


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"persistent://public/default/spark-{next(_serial)}"
