"""Which broker is meant, and as whom: one place says it, single options win, and no secret is shown or mixed up."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from pybroker.cli.exit_codes import WrongUsage
from pybroker.cli.parsing import CommandParser
from pybroker.cli.profiles import parse_profiles, profiles_path, read_profiles
from pybroker.cli.which_broker import DEFAULT_URL, Where, add_broker_options, broker_of, same_broker

PROFILES = """
default = "local"
[profiles.local]
url = "http://localhost:1"
[profiles.prod]
url = "https://prod:8443"
service_url = "pulsar+ssl://prod:6651"
token_file = "prod.jwt"
tls_trust_certs_file = "ca.pem"
[profiles.basic]
url = "http://basic:8080"
basic_user = "me"
basic_password_env = "MY_PASSWORD"
"""


def parsed(*arguments: str) -> argparse.Namespace:
    parser = CommandParser(prog="pybroker test")
    add_broker_options(parser, is_binary=True)
    options: argparse.Namespace = parser.parse_args(arguments)
    return options


def where(*arguments: str, **environment: str) -> Where:
    return broker_of(parsed(*arguments), {"PYBROKER_PROFILES": "/does/not/exist", **environment})


@pytest.fixture
def profiles(tmp_path: Path) -> str:
    path = tmp_path / "profiles.toml"
    path.write_text(PROFILES)
    return str(path)


def test_without_anything_it_is_the_broker_on_this_machine() -> None:
    access = where().access
    assert (access.admin_url, access.service_url, access.method) == (DEFAULT_URL, "", "none")


def test_the_environment_names_broker_and_credentials() -> None:
    access = where(PULSAR_ADMIN_URL="http://b:1", PULSAR_SERVICE_URL="pulsar://b:2", PULSAR_TOKEN="secret").access
    assert (access.admin_url, access.service_url, access.method) == ("http://b:1", "pulsar://b:2", "token")
    assert access.token is not None
    assert access.token.in_environment == "PULSAR_TOKEN"
    assert "secret" not in repr(access)


def test_an_option_wins_over_the_environment() -> None:
    access = where("--url", "http://c:3", "--token-file", "/t", PULSAR_ADMIN_URL="http://b:1", PULSAR_TOKEN="x").access
    assert access.admin_url == "http://c:3"
    assert access.token is not None
    assert access.token.in_file == "/t"


def test_a_profile_is_taken_as_a_whole_and_its_paths_are_beside_its_file(profiles: str, tmp_path: Path) -> None:
    environment = {"PYBROKER_PROFILES": profiles, "PULSAR_ADMIN_URL": "http://other:1", "PULSAR_BASIC_USER": "u"}
    found = where("--profile", "prod", **environment)
    assert found.source == "profile prod"
    assert found.access.admin_url == "https://prod:8443"
    assert found.access.method == "token"
    assert found.access.token is not None
    assert found.access.token.in_file == str(tmp_path / "prod.jwt")
    assert found.access.tls_trust_certs_file == str(tmp_path / "ca.pem")


def test_credentials_of_the_environment_never_go_to_a_broker_of_a_profile(profiles: str) -> None:
    for arguments in ((), ("--profile", "local")):
        access = where(*arguments, PYBROKER_PROFILES=profiles, PULSAR_TOKEN="for another one").access
        assert access.admin_url == "http://localhost:1"
        assert access.method == "none"


def test_the_default_profile_counts_only_where_nobody_names_a_broker(profiles: str) -> None:
    assert where(PYBROKER_PROFILES=profiles, PYBROKER_PROFILE="prod").access.admin_url == "https://prod:8443"
    assert where("--url", "http://x:1", PYBROKER_PROFILES=profiles, PYBROKER_PROFILE="prod").access.method == "none"
    assert where(PYBROKER_PROFILES=profiles, PULSAR_ADMIN_URL="http://y:1").access.admin_url == "http://y:1"


def test_credentials_that_are_given_replace_those_of_the_profile(profiles: str) -> None:
    access = where("--profile", "basic", "--token-file", "/t", PYBROKER_PROFILES=profiles).access
    assert access.method == "token"
    access = where("--profile", "basic", "--basic-user", "you", PYBROKER_PROFILES=profiles).access
    assert access.basic_user == "you"
    assert access.basic_password is not None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--url", "ftp://x"), "url: expected http://HOST:PORT or https://HOST:PORT"),
        (("--url", "http://me:hunter2@x"), "without user and password"),
        (("--url", "http://x:99999999"), "expected http"),
        (("--service-url", "http://x"), "service-url: expected pulsar://"),
        (("--tls-key-file", "k"), "needs both its certificate file and its key file"),
        (("--basic-user", "me"), "needs userId and password"),
        (("--profile", "nosuch"), "the profile 'nosuch' does not exist"),
    ],
)
def test_what_cannot_be_used_is_told_without_a_secret(arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        where(*arguments)
    assert complaint in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "option", ["--token", "--auth-params", "--password", "--basic-password", "--tokn", "--token=hunter2"]
)
def test_no_option_takes_a_secret_and_none_is_repeated(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([option, "hunter2"], [option + "=hunter2"], [option]):
        with pytest.raises(SystemExit) as ended:
            parsed(*arguments)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert "hunter2" not in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[profiles.a]\nurll = 'x'", "'urll' is not a known key; did you mean url?"),
        ("[profiles.a]\nurl = 5", "url must be a non-empty text"),
        ("[profiles.a]\ntls_allow_insecure = 'yes'", "must be true or false"),
        ("token = 'hunter2'", "the key 'token' is unknown: a profile begins with"),
        ("profiles = 3", "a profile begins with [profiles.NAME]"),
        ("[profiles.a]\ntoken = hunter2", "line 2"),
        ("default = 3", "default must be the name"),
        ("a = " + "[" * 100_000, "is not TOML"),
    ],
)
def test_a_file_of_profiles_that_is_none_is_told_by_its_place(content: str, complaint: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        parse_profiles(Path("profiles.toml"), content.encode())
    assert complaint in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_file_with_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text("[profiles.a]\ntoken = 'hunter2'\n")
    path.chmod(0o644)
    with pytest.raises(WrongUsage, match="chmod 600") as refused:
        read_profiles(path)
    assert "hunter2" not in str(refused.value)
    path.chmod(0o600)
    assert "hunter2" not in repr(read_profiles(path))
    assert read_profiles(path).get("a")["token"] == "hunter2"


def test_a_file_that_is_too_large_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"#" * (2 << 20))
    for path in (tmp_path / "large", tmp_path):
        with pytest.raises(WrongUsage):
            read_profiles(path)
    assert read_profiles(tmp_path / "none").by_name == {}


def test_profiles_are_where_the_rules_of_xdg_say() -> None:
    assert profiles_path({"HOME": "/h"}) == Path("/h/.config/pybroker/profiles.toml")
    assert profiles_path({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}) == Path("/c/pybroker/profiles.toml")
    assert profiles_path({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}) == Path("/h/.config/pybroker/profiles.toml")


def test_a_settings_file_counts_like_a_profile_below_the_named_profile_and_above_the_environment(profiles: str) -> None:
    environment = {
        "PYBROKER_PROFILES": profiles,
        "PULSAR_ADMIN_URL": "http://env:1",
        "PULSAR_TOKEN": "of the environment",
    }
    settings = {"url": "http://file:1", "basic_user": "me", "basic_password_env": "MY_PASSWORD"}
    found = broker_of(parsed(), environment, settings).access
    assert (found.admin_url, found.method) == ("http://file:1", "basic")
    found = broker_of(parsed("--token-file", "/t"), environment, settings).access
    assert (found.admin_url, found.method) == ("http://file:1", "token")
    found = broker_of(parsed("--profile", "prod"), environment, settings).access
    assert (found.admin_url, found.method) == ("https://prod:8443", "token")


def completed(tmp_path: Path, environment: dict[str, str], **given: Any) -> str:
    """A command as `explain` suggests it."""
    names = ("url", "token_file", "basic_user", "basic_password_file", "tls_trust_certs_file", "profile")
    options = argparse.Namespace(timeout=1.0, **{**dict.fromkeys(names), **given})
    return same_broker(options, {"XDG_CONFIG_HOME": str(tmp_path), **environment}).command("pybroker skip t s")


def test_a_suggested_command_names_broker_and_credentials_and_no_secret(tmp_path: Path) -> None:
    assert completed(tmp_path, {}) == f"pybroker --url {DEFAULT_URL} skip t s"
    assert completed(tmp_path, {}, url="http://b:1") == "pybroker --url http://b:1 skip t s"
    environment = {
        "PULSAR_ADMIN_URL": "https://b:1",
        "PULSAR_TOKEN": "secret",
        "PULSAR_TLS_TRUST_CERTS_FILE": "/ca.pem",
    }
    command = completed(tmp_path, environment)
    assert command == (
        'PULSAR_TOKEN="$PULSAR_TOKEN" pybroker --url https://b:1 --tls-trust-certs-file /ca.pem skip t s'
    )
    of_file = completed(tmp_path, environment, token_file="my token")
    assert of_file.endswith(f"--token-file '{Path('my token').absolute()}' skip t s")
    assert "PULSAR_TOKEN" not in of_file
    environment = {"PULSAR_ADMIN_URL": "http://b:1", "PULSAR_BASIC_USER": "me", "PULSAR_BASIC_PASSWORD": "secret"}
    assert completed(tmp_path, environment) == (
        'PULSAR_BASIC_PASSWORD="$PULSAR_BASIC_PASSWORD" pybroker --url http://b:1 --basic-user me skip t s'
    )


def test_a_suggested_command_names_the_profile_also_where_it_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(
        'default = "a"\n[profiles.a]\nurl = "http://a:1"\ntoken = "secret"\n[profiles.b]\nurl = "http://b:1"\n'
    )
    file.chmod(0o600)
    environment = {"PYBROKER_PROFILES": str(file), "PULSAR_TOKEN": "other"}
    assert completed(tmp_path, environment) == f"PYBROKER_PROFILES={file} pybroker --profile a skip t s"
    assert completed(tmp_path, environment, profile="b", url="http://c:1") == (
        f"PYBROKER_PROFILES={file} pybroker --profile b --url http://c:1 skip t s"
    )
