"""One Spark session and one broker for all tests; where Java is missing they are left out, saying so."""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import client, topic
from tests.support.broker_process import BrokerProcess

__all__ = ["broker", "client", "own_broker", "spark", "topic"]
HAS_READ_LIMITS = find_spec("pyspark") is not None and find_spec("pyspark.sql.streaming.datasource") is not None
"""PySpark 4.2 or newer."""
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "brokerDeduplicationEnabled": "true",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


def new_session(master: str, *, is_activated: bool = True, **settings: str) -> Any:
    """A session on this machine alone, whose workers are this interpreter, or that of the PATH."""
    from pyspark.sql import SparkSession

    if is_activated:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("tests")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    if not HAS_READ_LIMITS:
        fixed["spark.sql.streaming.triggerAvailableNowWrapper.enabled"] = "true"
    for key, value in {**fixed, **settings}.items():
        builder = builder.config(key.replace("__", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before 4.2 PySpark itself leaves sockets for the garbage collector."""
    if not HAS_READ_LIMITS:
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session of two cores."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 on the PATH")
    session = new_session("local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker that all tests share; each uses topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS).running() as process:
        yield process


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker that this test may kill."""
    process = BrokerProcess(tmp_path, SETTINGS).start()
    yield process
    process.stop()
