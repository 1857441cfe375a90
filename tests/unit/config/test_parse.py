"""File, environment and command line make one configuration, and no setting is dropped silently."""

from pathlib import Path

import pytest

from pybroker.config import BrokerConfig, ConfigError, dump, load
from pybroker.config.parse import parse_properties

SHIPPED = Path(__file__).resolve().parents[3] / "conf" / "broker.conf"


def settings(text: str) -> dict[str, str]:
    return {key: value for _, key, value in parse_properties(text)}


def write(path: Path, text: str) -> Path:
    file = path / "broker.conf"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_any_source_every_key_has_its_default() -> None:
    loaded = load(None, {}, {})
    assert loaded.config == BrokerConfig()
    assert loaded.unknown_keys == ()
    assert loaded.unsupported_keys_in_use == ()


def test_the_shipped_file_states_the_defaults() -> None:
    loaded = load(SHIPPED, {}, {})
    assert loaded.config == BrokerConfig()
    assert loaded.unknown_keys == ()
    assert loaded.unsupported_keys_in_use == ()


def test_a_fresh_broker_is_safe_by_default() -> None:
    config = BrokerConfig()
    assert config.bind_address == "127.0.0.1"
    assert config.journal_sync_data
    assert config.cluster_name == "standalone"
    assert (config.broker_service_port, config.broker_service_port_tls) == (6650, None)
    assert (config.web_service_port, config.web_service_port_tls) == (8080, None)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "brokerServicePort=1\nwebServicePort=1\nclusterName=file\nmaxMessageSize=10\n")
    environ = {"webServicePort": "2", "clusterName": "environment", "HOME": "/nowhere"}
    config = load(file, environ, {"clusterName": "option"}).config
    assert config.max_message_size == 10
    assert config.broker_service_port == 1
    assert config.web_service_port == 2
    assert config.cluster_name == "option"


@pytest.mark.parametrize("order", [1, -1])
def test_the_prefixed_variable_wins_over_the_plain_one(order: int) -> None:
    variables = [("clusterName", "plain"), ("PULSAR_PREFIX_clusterName", "prefixed")]
    assert load(None, dict(variables[::order]), {}).config.cluster_name == "prefixed"


def test_unknown_keys_of_all_sources_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, "zookeeperServers=a:2181\nclusterName=x\n")
    loaded = load(file, {"PULSAR_PREFIX_fromEnvironment": "1", "PATH": "/bin"}, {"typo": "1"})
    assert loaded.unknown_keys == ("fromEnvironment", "typo", "zookeeperServers")


def test_unsupported_keys_are_named_when_they_ask_for_something_else(tmp_path: Path) -> None:
    file = write(tmp_path, "loadBalancerMultiPhaseBundleUnload=false\nnumHttpServerThreads=8\nwebSocketNumIoThreads=\n")
    assert load(file, {}, {}).unsupported_keys_in_use == ("loadBalancerMultiPhaseBundleUnload",)


@pytest.mark.parametrize(
    ("environ", "overrides", "origin"),
    [
        ({"maxMessageSize": "big"}, {}, "environment variable maxMessageSize"),
        ({"PULSAR_PREFIX_maxMessageSize": "big"}, {}, "environment variable PULSAR_PREFIX_maxMessageSize"),
        ({}, {"maxMessageSize": "big"}, "command line"),
    ],
)
def test_a_bad_value_is_refused_with_its_origin(
    environ: dict[str, str], overrides: dict[str, str], origin: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(None, environ, overrides)
    assert str(refusal.value) == f"maxMessageSize cannot be 'big': expected an integer, 1 or more ({origin})"


def test_a_bad_value_of_a_file_is_refused_with_file_and_line(tmp_path: Path) -> None:
    file = write(tmp_path, "# ports\n\nbrokerServicePort = many\n")
    with pytest.raises(ConfigError) as refusal:
        load(file, {}, {})
    assert str(refusal.value).endswith(f"({file} line 3)")


def test_a_bad_value_that_a_later_source_replaces_does_no_harm(tmp_path: Path) -> None:
    file = write(tmp_path, "brokerServicePort=many\n")
    assert load(file, {}, {"brokerServicePort": "7"}).config.broker_service_port == 7


def test_a_file_that_cannot_be_read_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*missing.conf: No such file or directory"):
        load(tmp_path / "missing.conf", {}, {})
    binary = tmp_path / "binary.conf"
    binary.write_bytes(b"clusterName=\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(binary, {}, {})


def test_a_line_that_sets_nothing_is_refused_with_its_number(tmp_path: Path) -> None:
    file = write(tmp_path, "clusterName=x\nauthenticationEnabled\n")
    with pytest.raises(ConfigError, match="line 2 is not key=value: 'authenticationEnabled'"):
        load(file, {}, {})
    with pytest.raises(ConfigError, match="line 1 is not key=value"):
        settings("=value")


def test_comments_blank_lines_and_spaces_do_not_matter() -> None:
    assert settings("# a=1\n! b=2\n\n   \n  c = 3  \nd=4") == {"c": "3", "d": "4"}


def test_the_first_separator_ends_the_key() -> None:
    text = "advertisedListeners=internal:pulsar://a:6650,external:pulsar://b:6650\nargs=a=b\nkey: value\n"
    assert settings(text) == {
        "advertisedListeners": "internal:pulsar://a:6650,external:pulsar://b:6650",
        "args": "a=b",
        "key": "value",
    }


def test_a_backslash_at_the_end_joins_the_next_line() -> None:
    assert settings("roles=a,\\\n    b,\\\n    c\nnext=1") == {"roles": "a,b,c", "next": "1"}
    assert settings("last=a\\") == {"last": "a"}


def test_a_doubled_backslash_at_the_end_is_a_backslash() -> None:
    assert settings("path=a\\\\\nnext=1") == {"path": "a\\", "next": "1"}


def test_escapes_mean_what_they_mean_in_java() -> None:
    assert settings("a=x\\ty\\=z\\u00e4\\:") == {"a": "x\ty=zä:"}


def test_the_last_of_several_lines_wins(tmp_path: Path) -> None:
    assert load(write(tmp_path, "clusterName=a\nclusterName=b\n"), {}, {}).config.cluster_name == "b"


def test_a_dump_shows_every_key_as_text_and_hides_secrets() -> None:
    config = BrokerConfig().replace(
        token_secret_key="data:;base64,c2VjcmV0",
        super_user_roles=("admin", "ops"),
        broker_service_port_tls=None,
    )
    shown = dump(config)
    assert shown["tokenSecretKey"] == "*****"
    assert shown["brokerClientAuthenticationParameters"] == ""
    assert shown["superUserRoles"] == "admin,ops"
    assert shown["brokerServicePortTls"] == ""
    assert shown["journalSyncData"] == "true"
    assert shown["maxMessageSize"] == "5242880"
    assert len(shown) >= 300


def test_a_configuration_does_not_show_its_secrets_when_printed() -> None:
    assert "hunter2" not in repr(BrokerConfig().replace(token_secret_key="hunter2"))
