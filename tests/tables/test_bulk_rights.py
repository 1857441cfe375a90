"""Plans, bulk reads and leases by right, over TLS and plain, by each way in; and no secret in what is said."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.rest import Answer, call
from tests.support.secured import HTTP, HTTPS, PROVIDERS, TLS, Secured, tls_settings
from tests.tables.stored import bodies_of, publish

from pybroker.cli import main
from pybroker.client import ClientError
from pybroker.client.access import Access, Secret
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.reading.transports.segment_source import SegmentSource

TOPIC = "persistent://acme/data/t"
BASE = "/admin/v3/entries/persistent/acme/data"
PLAN = {"topics": [{"topic": "t"}]}
LEASE = {"reader": "r", "topics": [{"topic": "t", "start": [0, 0]}]}
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": PROVIDERS,
    "authorizationEnabled": "true",
    "superUserRoles": "admin",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """`reader` may consume the topic, `writer` may produce to it, `boss` is the tenant's administrator."""
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory)
    key = directory / "token.key"
    key.write_bytes(credentials.secret_key())
    passwords = credentials.htpasswd(directory, reader="password of reader")
    files = {"tokenSecretKey": key.as_uri(), "basicAuthConf": str(passwords)}
    process = BrokerProcess(directory, {**SETTINGS, **files, **tls_settings(authority)})
    with process.running():
        found = Secured(process, authority, key.read_bytes())
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert found.rest("PUT", "/admin/v2/tenants/acme", "admin", body=tenant).status == 204
        assert found.rest("PUT", "/admin/v2/namespaces/acme/data", "boss").status == 204
        for role, actions in {"writer": ["produce"], "reader": ["consume"]}.items():
            path = f"/admin/v2/namespaces/acme/data/permissions/{role}"
            assert found.rest("POST", path, "admin", body=actions).status == 204
        yield found
    assert "Traceback" not in process.log.read_text()


@pytest.fixture(scope="module")
def sent(secured: Secured) -> list[bytes]:
    """What is in the topic, some of it in a sealed ledger."""
    with secured.client(secured.authentication("token", "writer")) as client:
        bodies = publish(client, TOPIC, 2000, size=2000)
    assert secured.rest("PUT", "/admin/v2/persistent/acme/data/t/unload", "boss").status == 204
    with secured.client(secured.authentication("token", "writer")) as client:
        return bodies + publish(client, TOPIC, 20, serial=2000)


def access(secured: Secured, method: str, *, tls: bool = False, role: str = "reader") -> Access:
    urls = (secured.url(TLS), secured.url(HTTPS)) if tls else (secured.url("broker_url"), secured.url(HTTP))
    trust = str(secured.authority.certificate_path)
    if method == "basic":
        password = Secret(f"password of {role}")
        return Access(*urls, basic_user=role, basic_password=password, tls_trust_certs_file=trust)
    if method == "tls":
        files = secured.certificate(role)
        return Access(
            *urls,
            tls_certificate_file=str(files.certificate),
            tls_key_file=str(files.key),
            tls_trust_certs_file=trust,
        )
    return Access(*urls, token=Secret(secured.token(role)), tls_trust_certs_file=trust)


@pytest.mark.parametrize(
    ("method", "tls", "mode"),
    [
        ("token", False, "bulk"),
        ("token", True, "bulk"),
        ("basic", True, "bulk"),
        ("tls", True, "bulk"),
        ("token", True, "auto"),
    ],
)
def test_who_may_consume_reads_everything(
    secured: Secured, sent: list[bytes], method: str, tls: bool, mode: str
) -> None:
    source = open_source(SourceOptions(access(secured, method, tls=tls), mode, patience_s=10))
    assert isinstance(source, SegmentSource) == (mode == "auto")
    assert bodies_of(source, source.plan(TOPIC)) == sent
    source.close()


@pytest.mark.parametrize("role", ["writer", "stranger"])
def test_who_may_not_consume_gets_nothing(secured: Secured, sent: list[bytes], role: str) -> None:
    read = secured.rest("GET", f"{BASE}/t/ledger/1", role)
    assert read.status == 401
    for path, body in [("/plan", PLAN), ("/leases", LEASE)]:
        shown = secured.rest("POST", BASE + path, role, body=body).json["topics"][0]
        assert shown["status"] == 401
        assert not {"ledgers", "first", "lost"} & shown.keys()
    assert secured.rest("GET", BASE + "/leases", role).status == 403
    options = SourceOptions(access(secured, "token", role=role), "bulk", patience_s=0)
    with (
        pytest.raises(ClientError, match="answered 401") as refused,
        contextlib.closing(open_source(options)) as source,
    ):
        source.plan(TOPIC)
    assert secured.token(role) not in str(refused.value)


def test_a_topic_that_is_not_there_looks_like_one_that_one_may_not_consume(secured: Secured) -> None:
    for topic in ("t", "missing"):
        body = {"topics": [{"topic": topic}]}
        assert secured.rest("POST", BASE + "/plan", "stranger", body=body).json["topics"][0]["status"] == 401


def test_without_credentials_or_with_wrong_ones_nobody_gets_in(secured: Secured) -> None:
    def ask(method: str, path: str, body: object, token: str | None) -> Answer:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return call(secured.url(HTTP) + path, method, body=body, headers=headers)

    for token in (None, "wrong"):
        for method, path, body in [
            ("GET", BASE + "/t/ledger/1", None),
            ("POST", BASE + "/plan", PLAN),
            ("POST", BASE + "/leases", LEASE),
            ("GET", BASE + "/leases", None),
            ("DELETE", BASE + "/leases/r", None),
            ("GET", "/admin/v3/entries/directory", None),
        ]:
            assert ask(method, path, body, token).status == 401, (method, path)


def test_a_lease_belongs_to_its_role(secured: Secured, sent: list[bytes]) -> None:
    assert secured.rest("POST", BASE + "/leases", "reader", body=LEASE).json["topics"][0].get("status") is None
    assert secured.rest("DELETE", BASE + "/leases/r", "writer").json == []
    assert [each["role"] for each in secured.rest("GET", BASE + "/leases", "boss").json] == ["reader"]
    assert secured.rest("DELETE", BASE + "/leases/r", "reader").json == ["t"]


@pytest.mark.parametrize("secret", ["pa55 w0rd\npa55", "päpa55", "\x00pa55"])
@pytest.mark.parametrize("way", ["token", "password", "certificate", "nobody there"])
def test_no_error_shows_a_secret(secured: Secured, tmp_path: Path, secret: str, way: str) -> None:
    chosen = {
        "token": Access("", secured.url(HTTP), token=Secret(secret)),
        "password": Access("", secured.url(HTTP), basic_user="reader", basic_password=Secret(secret)),
        "certificate": Access("", secured.url(HTTPS), token=Secret(secret), tls_trust_certs_file=str(tmp_path / "no")),
        "nobody there": Access("", "http://127.0.0.1:1", token=Secret(secret.replace("\n", ""))),
    }[way]
    options = SourceOptions(chosen, "bulk", patience_s=0)
    with pytest.raises(ClientError) as failure, contextlib.closing(open_source(options)) as source:
        source.plan(TOPIC)
    error: BaseException | None = failure.value
    while error is not None:
        assert "pa55" not in str(error)
        error = error.__cause__
    assert "pa55" not in repr(options)


def profile_of(secured: Secured, directory: Path, role: str) -> Path:
    """A file of profiles with one that has the HTTPS address, the authority and a file with the token of `role`."""
    (directory / "reader.jwt").write_text(secured.token(role))
    lines = (f'url = "{secured.url(HTTPS)}"', f'tls_trust_certs_file = "{secured.authority.certificate_path}"')
    path = directory / "profiles.toml"
    path.write_text("\n".join(("[profiles.cluster]", *lines, 'token_file = "reader.jwt"', "")))
    return path


@pytest.mark.parametrize("words", [("--profile", "cluster", "pipeline"), ("pipeline",)])
@pytest.mark.parametrize("mode", ["bulk", "binary"])
def test_a_pipeline_takes_broker_token_and_authority_of_a_profile(
    secured: Secured,
    sent: list[bytes],
    words: tuple[str, ...],
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYBROKER_PROFILES", str(profile_of(secured, tmp_path, "reader")))
    after = () if words[0] == "--profile" else ("--profile", "cluster")
    asked = ("schema-audit", "--topic", TOPIC, "--read-mode", mode, "--json")
    assert main([*words, *asked, *after]) == 0, capsys.readouterr().err
    (audit,) = json.loads(capsys.readouterr().out)["topics"]
    assert sum(version["messages"] for version in audit["versions"]) == len(sent)


def test_a_pipeline_reads_its_connection_from_its_settings_file(
    secured: Secured, sent: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reader.jwt").write_text(secured.token("reader"))
    lines = (
        f'topics = ["{TOPIC}"]',
        'format = "parquet"',
        'table = "t"',
        f'target = "{tmp_path}/lake"',
        f'admin-url = "{secured.url(HTTPS)}"',
        f'auth-params = "file:{tmp_path}/reader.jwt"',
        f'tls-trust-certs-file = "{secured.authority.certificate_path}"',
    )
    (tmp_path / "lake.toml").write_text("\n".join(lines))
    asked = ["pipeline", "lake", "--config", str(tmp_path / "lake.toml"), "--once", "--json", "--log-level", "error"]
    assert main(asked) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == len(sent)
