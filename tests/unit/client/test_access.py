"""Secrets are read at their use and never shown."""

import pickle
from pathlib import Path

import pytest

from pybroker.client.access import (
    Access,
    AccessRefused,
    Secret,
    access_by_parameters,
    basic_secret,
    tls_files,
    token_secret,
)

URL = "pulsar://localhost:6650"


def test_a_token_is_taken_in_every_form_that_clients_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("abc.def\n")
    monkeypatch.setenv("THE_TOKEN", "abc.def")
    forms = ["abc.def", "token:abc.def", f"file:{tmp_path}/token", f"file://{tmp_path}/token", "env:THE_TOKEN"]
    for form in [*forms, '{"token": "abc.def"}']:
        assert token_secret(form).reveal() == "abc.def", form


def test_no_secret_is_shown_by_repr_and_access_survives_a_pickle() -> None:
    access = Access(URL, basic_user="joe", basic_password=Secret(text="hush-hush"))
    assert "hush-hush" not in repr(access)
    assert pickle.loads(pickle.dumps(access)) == access
    assert hash(access) == hash(Access(URL, basic_user="joe", basic_password=Secret(text="hush-hush")))
    assert (access.method, access.auth_data()) == ("basic", b"joe:hush-hush")


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    access = Access(URL, token=Secret(in_file=str(path)))
    assert access.auth_data() == b"one"
    path.write_text("two")
    assert access.auth_data() == b"two"


@pytest.mark.parametrize("content", [b"", b" \n", b"x" * 70_000])
def test_a_file_that_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(AccessRefused, match="token"):
        Secret(in_file=str(tmp_path / "token")).reveal()


def test_what_is_missing_is_told_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(AccessRefused, match="NOT_THERE"):
        token_secret("env:NOT_THERE").reveal()
    with pytest.raises(AccessRefused, match="nothing-here"):
        token_secret(f"file:{tmp_path}/nothing-here").reveal()


@pytest.mark.parametrize(
    "parameters", ['{"userId": "joe"}', '{"password": "hush"', "joe", '{"userId": "", "password": "hush"}']
)
def test_wrong_parameters_are_refused_without_their_text(parameters: str) -> None:
    with pytest.raises(AccessRefused) as refused:
        basic_secret(parameters)
    assert "hush" not in str(refused.value)


def test_user_and_password_come_as_json_or_with_a_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_PASSWORD", "hush")
    for parameters in [
        '{"userId": "joe", "password": "hush"}',
        "joe:hush",
        '{"userId":"joe","password":"env:THE_PASSWORD"}',
    ]:
        user, password = basic_secret(parameters)
        assert (user, password.reveal()) == ("joe", "hush")


def test_certificate_and_key_come_together() -> None:
    assert tls_files("tlsCertFile:/a.pem,tlsKeyFile:/b.pem") == ("/a.pem", "/b.pem")
    assert tls_files('{"tlsCertFile": "/a.pem", "tlsKeyFile": "/b.pem"}') == ("/a.pem", "/b.pem")
    with pytest.raises(AccessRefused):
        tls_files("tlsCertFile:/a.pem")
    with pytest.raises(AccessRefused):
        Access(URL, tls_certificate_file="/a.pem")


def test_one_authenticates_in_one_way() -> None:
    with pytest.raises(AccessRefused):
        Access(URL, token=Secret(text="a"), basic_user="b", basic_password=Secret(text="c"))


@pytest.mark.parametrize(
    ("parameters", "method", "data"),
    [
        ("", "none", b""),
        ("token:abc", "token", b"abc"),
        ("abc", "token", b"abc"),
        ('{"token": "abc"}', "token", b"abc"),
        (' {"userId": "joe", "password": "hush"}', "basic", b"joe:hush"),
    ],
)
def test_the_form_of_the_parameters_says_how_one_authenticates(parameters: str, method: str, data: bytes) -> None:
    access = access_by_parameters(URL, "", parameters, "")
    assert (access.method, access.auth_data()) == (method, data)
    assert (access.service_url, access.admin_url, access.tls_trust_certs_file) == (URL, None, None)


@pytest.mark.parametrize("parameters", ["  ", "token:", "{hush}", '{"userId": "joe"}', '{"password": "hush"}', "{"])
def test_parameters_without_a_secret_are_refused_without_their_text(parameters: str) -> None:
    with pytest.raises(AccessRefused) as refused:
        access_by_parameters(URL, None, parameters, None)
    assert "hush" not in str(refused.value)
