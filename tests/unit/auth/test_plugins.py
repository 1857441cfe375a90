"""Providers of users: entry points and imports, and names that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import plugin_packages

from pybroker.auth.authentication import AuthenticationService
from pybroker.auth.authorization import check_configuration
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError

SOURCE = """
from pybroker.auth.authentication_provider import AuthenticationProvider
from pybroker.auth.authorization_provider import AuthorizationProvider

class Fine(AuthenticationProvider):
    method = "fine"

    @classmethod
    def create(cls, environment):
        return cls()

class Fails(Fine):
    @classmethod
    def create(cls, environment):
        raise RuntimeError("no such file")

class Abstract(AuthenticationProvider):
    method = "abstract"

class Nameless(AuthenticationProvider):
    @classmethod
    def create(cls, environment):
        return cls()

class Other: pass

class Synchronous(AuthorizationProvider):
    @classmethod
    def create(cls, environment):
        return cls()

    def is_superuser(self, role): ...
    def administers(self, tenant, role): ...
    async def require_produce(self, topic, role): ...
    async def require_consume(self, topic, subscription, role): ...
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "fine": "plugin_under_test:Fine",
        "fails": "plugin_under_test:Fails",
        "other": "plugin_under_test:Other",
        "missing": "no_such_module:Fine",
    }
    points = {"pybroker.authentication": names, "pybroker.authorization": names}
    monkeypatch.syspath_prepend(plugin_packages.install(tmp_path / "site", "plugin_under_test", SOURCE, points))


def service_of(name: str) -> AuthenticationService:
    return AuthenticationService(BrokerConfig(authentication_enabled=True, authentication_providers=(name,)))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["fine", "plugin_under_test:Fine"])
def test_provider_is_found_by_entry_point_and_by_import(name: str) -> None:
    assert service_of(name).enabled


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("unknown", "'unknown' is not supported; use one of .*AuthenticationProviderToken.*module:Class"),
        ("missing", "'missing' cannot be imported: ModuleNotFoundError"),
        ("plugin_under_test:Missing", "cannot be imported: AttributeError"),
        ("other", "'other' is not a subclass of pybroker.auth.authentication_provider.AuthenticationProvider"),
        ("fails", "'fails' cannot be created: RuntimeError: no such file"),
        ("plugin_under_test:Abstract", "lacks create"),
        ("plugin_under_test:Nameless", "has no attribute `method`"),
    ],
)
def test_unusable_provider_is_refused(name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        service_of(name)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["unknown", "missing", "fine", "com.example.PulsarAuthorizationProvider"])
def test_unusable_authorization_provider_is_refused(name: str) -> None:
    config = BrokerConfig(authentication_enabled=True, authorization_enabled=True, authorization_provider=name)
    with pytest.raises(ConfigError, match="authorizationProvider"):
        check_configuration(config)


@pytest.mark.usefixtures("installed")
def test_authorization_provider_with_synchronous_methods_is_refused() -> None:
    name = "plugin_under_test:Synchronous"
    config = BrokerConfig(authentication_enabled=True, authorization_enabled=True, authorization_provider=name)
    with pytest.raises(ConfigError, match=r"must declare `async def` for is_superuser, administers$"):
        check_configuration(config)
