"""Every test run tries the same examples, however slow the machine is; `make fuzz SEED=n` tries others."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support.metadata_contract")

settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("seeded", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("same" if config.getoption("--hypothesis-seed") is None else "seeded")


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """A program that a test runs in its own process may configure logging: the next test finds it as it was."""
    logger = logging.getLogger("pybroker")
    before = (list(logger.handlers), logger.propagate, logger.level, logging.raiseExceptions)
    yield
    logger.handlers, logger.propagate, level, logging.raiseExceptions = before
    logger.setLevel(level)
