"""The pytest plug-in, which pytest finds by its entry point.

Invariants: without a test that uses a broker, nothing is imported, started, or changed; the faults of a test end with
the test.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pybroker.testing.broker import TestBroker

SCOPES = ("session", "package", "module", "class", "function")
RESETS = ("never", "module", "test")
_BROKERS = pytest.StashKey[list["TestBroker"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pulsar", "a Pulsar broker for tests (pybroker)")
    group.addoption(
        "--pulsar-url",
        metavar="URL",
        help="URL of a broker to run tests against, instead of an embedded one (or PULSAR_URL)",
    )
    group.addoption("--pulsar-admin-url", metavar="URL", help="URL of that broker's admin API (or PULSAR_ADMIN_URL)")
    parser.addini(
        "pulsar_broker_scope",
        "scope of the embedded broker: session, package, module, class, function",
        default="session",
    )
    parser.addini("pulsar_reset", "when the broker is reset to an empty one: never, module, test", default="never")
    parser.addini(
        "pulsar_settings", "settings of broker.conf for the embedded broker, one key=value per line", type="linelist"
    )


def _choice(config: pytest.Config, name: str, choices: tuple[str, ...]) -> str:
    value = str(config.getini(name))
    if value not in choices:
        raise pytest.UsageError(f"{name} = {value} is invalid: use one of {', '.join(choices)}")
    return value


def pytest_configure(config: pytest.Config) -> None:
    _choice(config, "pulsar_broker_scope", SCOPES)
    _choice(config, "pulsar_reset", RESETS)
    if config.getoption("--pulsar-admin-url") and not config.getoption("--pulsar-url"):
        raise pytest.UsageError("--pulsar-admin-url needs --pulsar-url with the address of the same broker")
    if url := config.getoption("--pulsar-url"):
        # For unittest's classes and the worker processes of xdist.
        os.environ["PULSAR_URL"] = str(url)
        os.environ["PULSAR_ADMIN_URL"] = str(config.getoption("--pulsar-admin-url") or "")


def _scope(
    fixture_name: str,  # noqa: ARG001  (pytest calls it so)
    config: pytest.Config,
) -> Any:
    return _choice(config, "pulsar_broker_scope", SCOPES)


def _settings(config: pytest.Config) -> dict[str, object]:
    settings: dict[str, object] = {}
    for line in config.getini("pulsar_settings"):
        key, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"a line of pulsar_settings is not of the form key=value: {line!r}")
        settings[key.strip()] = value.strip()
    return settings


@pytest.fixture(scope=_scope)
def pulsar_broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    """A Pulsar broker: `service_url`, `admin_url`, `topic()`, `clock`, `faults`, `crash()`, `restart()`, `reset()`."""
    from pybroker.testing.choice import open_broker  # noqa: PLC0415  (where no test asks for a broker, nothing is loaded)

    broker = open_broker(**_settings(request.config))  # type: ignore[arg-type]
    brokers = request.config.stash.setdefault(_BROKERS, [])
    brokers.append(broker)
    yield broker
    brokers.remove(broker)
    try:
        broker.undo_faults()  # for the last test: this fixture ends before `pytest_runtest_teardown` continues
    finally:
        broker.close()


@pytest.fixture
def wait_for_backlog(pulsar_broker: TestBroker) -> Callable[..., None]:
    """`wait_for_backlog(topic, subscription, count=0, timeout_s=10)`: wait until `count` messages are
    unacknowledged.
    """
    from pybroker.testing import waiting  # noqa: PLC0415

    return functools.partial(waiting.wait_for_backlog, pulsar_broker)


@pytest.fixture
def wait_for_backlog_async(pulsar_broker: TestBroker) -> Callable[..., Any]:
    """`await wait_for_backlog_async(topic, subscription, count=0, timeout_s=10)`: wait until `count` messages are
    unacknowledged.
    """
    from pybroker.testing import waiting  # noqa: PLC0415

    return functools.partial(waiting.wait_for_backlog_async, pulsar_broker)


@pytest.fixture
def received() -> Callable[..., list[Any]]:
    """`received(consumer, count=1, acknowledge=True, timeout_s=10)`: receive the next messages and acknowledge them."""
    from pybroker.testing import waiting  # noqa: PLC0415

    return waiting.received


@pytest.fixture
def received_async() -> Callable[..., Any]:
    """`await received_async(consumer, count=1, acknowledge=True, timeout_s=10)`: receive the next messages of a consumer
    of the asyncio client, and acknowledge them.
    """
    from pybroker.testing import waiting  # noqa: PLC0415

    return waiting.received_async


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    yield
    failures: list[Exception] = []
    for broker in list(item.config.stash.get(_BROKERS, ())):
        try:
            broker.undo_faults()
        except Exception as error:  # noqa: BLE001  (raised after all brokers were reset)
            failures.append(error)
        resets = str(item.config.getini("pulsar_reset"))
        is_last = nextitem is None or nextitem.getparent(pytest.Module) is not item.getparent(pytest.Module)
        if nextitem is not None and (resets == "test" or (resets == "module" and is_last)):
            broker.reset()
    if failures:
        raise failures[0]
