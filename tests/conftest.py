"""Every test run tries the same examples, however slow the machine is; `make fuzz SEED=n` tries others."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("seeded", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("same" if config.getoption("--hypothesis-seed") is None else "seeded")
