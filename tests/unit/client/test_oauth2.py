"""Client credentials of OAuth 2.0: the forms of the parameters, and values that are refused."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pytest

from pybroker.client.access import Access, AccessRefused, access_by_parameters
from pybroker.client.oauth2 import oauth2_of
from pybroker.spark.connection_options import KEYS, access_of
from pybroker.spark.option_text import OptionValues

ISSUER = "https://idp.example/realm"
SECRET = {"client_id": "app", "client_secret": "hush-hush"}
DATA_URL = "data:application/json;base64," + base64.b64encode(json.dumps(SECRET).encode()).decode()
PLUGIN = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"


def parameters(**changes: Any) -> str:
    values = {"issuerUrl": ISSUER, "privateKey": "file:///etc/key.json", "audience": "a", "scope": "s"} | changes
    return json.dumps({name: value for name, value in values.items() if value is not None})


def test_parameters_of_the_java_client_are_read() -> None:
    found = oauth2_of(parameters(trustCertsFilePath="/ca.pem", type="client_credentials"))
    assert (found.issuer_url, found.audience, found.scope, found.trust_certs_file) == (ISSUER, "a", "s", "/ca.pem")
    assert found.key.in_file == "/etc/key.json"


@pytest.mark.parametrize("key", ["/etc/my key.json", "file:///etc/my%20key.json", "file:/etc/my%20key.json"])
def test_key_file_is_a_path_or_a_file_url(key: str) -> None:
    assert oauth2_of(parameters(privateKey=key)).key.in_file == "/etc/my key.json"


@pytest.mark.parametrize(
    "changes",
    [
        {"privateKey": DATA_URL},
        {"privateKey": f"data:application/json,{json.dumps(SECRET)}"},
        {"privateKey": None, **SECRET},
    ],
    ids=["base64", "plain", "members"],
)
def test_secret_in_the_parameters_is_not_shown(changes: dict[str, Any]) -> None:
    found = oauth2_of(parameters(**changes))
    assert json.loads(found.key.reveal()) == SECRET
    access = Access("pulsar://localhost:6650", oauth2=found)
    assert "hush" not in repr(access)
    assert pickle.loads(pickle.dumps(access)) == access
    assert hash(access) == hash(pickle.loads(pickle.dumps(access)))
    assert access.method == "token"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("hush-hush", "not a JSON object"),
        ('["hush-hush"]', "not a JSON object"),
        (parameters(issuerUrl=None), "issuerUrl"),
        (parameters(issuerUrl="http://idp.example"), "https://host/path"),
        (parameters(issuerUrl="https://user:hush-hush@idp.example"), "without user and password"),
        (parameters(issuerUrl=5), "issuerUrl"),
        (parameters(privateKey=None), "lack privateKey"),
        (parameters(privateKey="https://hush-hush/key"), "file:///path"),
        (parameters(privateKey="data:application/json;base64,hush-hush"), "is not valid"),
        (parameters(type="tls_client_auth"), "type=tls_client_auth: only client credentials"),
        (parameters(tlsCertFile="x"), "tlsCertFile: only client credentials"),
    ],
)
def test_unusable_parameters_are_refused_without_showing_them(text: str, match: str) -> None:
    with pytest.raises(AccessRefused, match=match) as caught:
        oauth2_of(text)
    assert "hush" not in str(caught.value)


def test_authentication_methods_exclude_each_other() -> None:
    access = access_by_parameters("pulsar://localhost:6650", None, parameters(), None)
    with pytest.raises(AccessRefused, match="exclude each other"):
        Access("pulsar://localhost:6650", oauth2=access.oauth2, token=oauth2_of(parameters()).key)


def test_spark_options_select_oauth2() -> None:
    options = {
        "service.url": "pulsar://localhost:6650",
        "pulsar.client.authPluginClassName": PLUGIN,
        "pulsar.client.authParams": parameters(),
    }
    assert access_of(OptionValues(options, KEYS, "read")).oauth2 == oauth2_of(parameters())
