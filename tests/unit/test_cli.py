"""The command line fills the configuration and says in one line what is wrong with it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import pybroker
from pybroker.cli import main
from pybroker.config import KEYS, BrokerConfig, similar_key


class FakeApp(ModuleType):
    """Stands for `pybroker.broker_process`: keeps what it was called with and ends at once."""

    def __init__(self) -> None:
        super().__init__("pybroker.broker_process")
        self.calls: list[tuple[BrokerConfig, Path | None, list[str]]] = []

    def run(self, config: BrokerConfig, ready_file: Path | None, warnings: list[str], **_: object) -> int:
        self.calls.append((config, ready_file, warnings))
        return 7


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    fake = FakeApp()
    monkeypatch.setitem(sys.modules, "pybroker.broker_process", fake)
    monkeypatch.setattr(pybroker, "broker_process", fake, raising=False)
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
        monkeypatch.delenv(f"PULSAR_PREFIX_{key}", raising=False)
    return fake


def test_serve_without_options_runs_the_defaults_and_returns_the_code_of_the_run(app: FakeApp) -> None:
    assert main(["serve"]) == 7
    assert app.calls == [(BrokerConfig(), None, [])]


def test_the_options_of_serve_stand_for_their_keys(app: FakeApp, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    options = ["--data", "/d", "--host", "::1", "--port", "0", "--http-port", "1", "--log-level", "debug"]
    assert main(["serve", *options, "--ready-file", str(ready)]) == 7
    config, ready_file, _ = app.calls[0]
    assert (config.data_directory, config.bind_address, config.log_level) == ("/d", "::1", "debug")
    assert (config.broker_service_port, config.web_service_port) == (0, 1)
    assert ready_file == ready


def test_set_changes_any_key_and_wins_over_the_file_and_the_environment(
    app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("clusterName=file\nmaxMessageSize=10\nkeepAliveIntervalSeconds=5\n", encoding="utf-8")
    monkeypatch.setenv("PULSAR_PREFIX_clusterName", "environment")
    monkeypatch.setenv("PULSAR_PREFIX_maxMessageSize", "20")
    assert main(["serve", "--config", str(file), "--set", "clusterName = a=b", "--set", "journalSyncData=false"]) == 7
    config = app.calls[0][0]
    assert (config.cluster_name, config.max_message_size, config.keep_alive_interval_seconds) == ("a=b", 20, 5)
    assert not config.journal_sync_data


def test_keys_without_effect_are_named_in_warnings(app: FakeApp) -> None:
    main(["serve", "--set", "noSuchKey=1", "--set", "loadBalancerMultiPhaseBundleUnload=false"])
    assert app.calls[0][2] == [
        "unknown configuration keys: noSuchKey",
        "configuration keys without effect in this version: loadBalancerMultiPhaseBundleUnload",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "many"], "brokerServicePort cannot be 'many'"),
        (["--set", "journalSyncData"], "--set needs KEY=VALUE"),
        (["--set", "=1"], "--set needs KEY=VALUE"),
        (["--log-level", "loud"], "logLevel cannot be 'loud': expected one of debug, info, warning, error"),
        (["--config", "no/such/file.conf"], "cannot read no/such/file.conf"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_line_and_code_2(
    app: FakeApp, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["serve", *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"pybroker: {complaint}")
    assert errors.count("\n") == 1
    assert not app.calls


def complaints(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["serve", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("pybroker: ") for line in lines)
    return [line.removeprefix("pybroker: ") for line in lines]


def test_all_that_is_wrong_with_a_configuration_is_told_at_once(
    app: FakeApp, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("maxMessageSize=large\na line that says nothing\nclusterName=a/b\nand another\nlogLevel=loud\n")
    monkeypatch.setenv("PULSAR_PREFIX_journalSyncData", "perhaps")
    settings = (
        "brokerServicePortTls=0",
        "tlsProtocols=SSLv3",
        "authorizationEnabled=true",
        "bootstrapNamespaces=a/b,c",
        "advertisedListeners=x,y:pulsar://h:1,z",
        "internalListenerName=q",
        "otelExporterOtlpEndpoint=collector:4318",
        "nonsense",
        "maxMesageSize=1",
    )
    found = complaints(capsys, "--config", str(file), *(word for text in settings for word in ("--set", text)))
    wanted = [
        "--set needs KEY=VALUE, not 'nonsense'",
        f"{file}: line 2 is not key=value: 'a line that says nothing'",
        f"{file}: line 4 is not key=value: 'and another'",
        "maxMessageSize cannot be 'large'",
        "logLevel cannot be 'loud'",
        "journalSyncData cannot be 'perhaps'",
        "authorizationEnabled=true needs authenticationEnabled=true",
        "tlsProtocols contains SSLv3, but the broker supports only TLSv1.2, TLSv1.3",
        "a TLS port is configured, so tlsCertificateFilePath must be set",
        "a TLS port is configured, so tlsKeyFilePath must be set",
        "advertisedListeners has 'x'",
        "advertisedListeners has 'z'",
        "clusterName cannot be 'a/b'",
        "bootstrapNamespaces cannot contain 'c'",
        "otelExporterOtlpEndpoint cannot be 'collector:4318'",
        "unknown configuration keys: maxMesageSize (did you mean maxMessageSize?)",
    ]
    assert len(found) == len(wanted), found
    assert [line for line, start in zip(found, wanted, strict=True) if not line.startswith(start)] == []
    assert not app.calls


def test_all_providers_that_cannot_work_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = complaints(
        capsys, "--set", "authenticationEnabled=true", "--set", "authenticationProviders=token,basic,kerberos"
    )
    assert [line.split()[0] for line in found] == ["authentication", "authentication", "authenticationProviders:"]
    assert "tokenSecretKey" in found[0]
    assert "basicAuthConf" in found[1]


def test_what_follows_from_a_value_that_was_refused_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = complaints(capsys, "--set", "authorizationEnabled=true", "--set", "authenticationEnabled=certainly")
    assert len(found) == 1
    assert found[0].startswith("authenticationEnabled cannot be 'certainly'")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("brokerServicPort", "brokerServicePort"),
        ("maxmessagesize", "maxMessageSize"),
        ("journalSyncDatas", "journalSyncData"),
        ("noSuchKey", None),
        ("zookeeperServers", None),  # Pulsar's, and not like any that is known here.
        ("", None),
        ("x" * 10_000, None),
    ],
)
def test_the_key_that_was_probably_meant_is_named(key: str, meant: str | None) -> None:
    assert similar_key(key) == meant


def test_a_warning_of_an_unknown_key_says_what_was_probably_meant(app: FakeApp) -> None:
    main(["serve", "--set", "brokerServicPort=1", "--set", "noSuchKey=1"])
    assert app.calls[0][2] == [
        "unknown configuration keys: brokerServicPort (did you mean brokerServicePort?), noSuchKey"
    ]


def test_version_is_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"pybroker {pybroker.__version__}\n"


def test_no_command_is_an_error_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
