"""The settings of the login to the console with OpenID Connect, checked at the start."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.config import BrokerConfig, Problems
from pybroker.configuration_check import check

COMPLETE: dict[str, Any] = {
    "authentication_enabled": True,
    "authentication_providers": ("oidc",),
    "open_id_allowed_token_issuers": ("https://login.example",),
    "open_id_allowed_audiences": ("console",),
    "console_open_id_issuer": "https://login.example",
    "console_open_id_client_id": "console",
    "console_open_id_redirect_uris": ("https://broker.example:8443/console/callback",),
}


def problems_of(**settings: Any) -> list[str]:
    problems = Problems()
    check(BrokerConfig(**settings), frozenset(), problems)
    return [each for each in problems.found if "consoleOpenID" in each]


def test_complete_settings_and_disabled_login_are_accepted() -> None:
    assert not problems_of(**COMPLETE)
    assert not problems_of(**COMPLETE, console_open_id_client_secret="data:,secret")
    assert not problems_of()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"authentication_enabled": False}, "needs authenticationEnabled=true and oidc"),
        ({"authentication_providers": ("token",)}, "needs authenticationEnabled=true and oidc"),
        ({"console_open_id_issuer": "https://other"}, "is not in openIDAllowedTokenIssuers"),
        ({"console_open_id_client_id": ""}, "needs consoleOpenIDClientId"),
        ({"console_open_id_client_id": "other"}, "is not in openIDAllowedAudiences"),
        ({"console_open_id_scope": "profile"}, "must contain openid"),
        ({"console_open_id_redirect_uris": ()}, "needs consoleOpenIDRedirectUris"),
        ({"console_open_id_redirect_uris": ("https://broker.example/",)}, "must have the form"),
        ({"console_open_id_redirect_uris": ("/console/callback",)}, "must have the form"),
        ({"console_open_id_client_secret": "./absent.secret"}, "does not exist"),
    ],
)
def test_setting_that_cannot_work_names_its_key(settings: dict[str, Any], problem: str) -> None:
    found = problems_of(**COMPLETE | settings)
    assert len(found) == 1, found
    assert problem in found[0]
