"""Reading and writing by token over TLS and by user and password, each way: what rights allow, and no secret anywhere."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import ROOT
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.secured import HTTP, HTTPS, PLAIN, TLS, Secured, tls_settings
from tests.tables.stored import publish
from tests.tables.test_bulk_rights import SETTINGS

pytestmark = [pytest.mark.spark, pytest.mark.long]
TOPIC = "persistent://acme/data/t"
RIGHTS = {"writer": ["produce"], "reader": ["consume"], "both": ["produce", "consume"]}
WAYS = ("token", "basic")
MODES = ("auto", "bulk", "broker")
STREAMS = {"token": "bulk", "basic": "broker"}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """A broker with TLS, tokens and passwords, whose roles may do what their names say."""
    authority = CertificateAuthority(tmp_path)
    key = tmp_path / "token.key"
    key.write_bytes(credentials.secret_key())
    passwords = credentials.htpasswd(tmp_path, **{role: f"password of {role}" for role in RIGHTS})
    files = {"tokenSecretKey": key.as_uri(), "basicAuthConf": str(passwords)}
    settings = {**SETTINGS, **files, **tls_settings(authority), "brokerDeduplicationEnabled": "true"}
    process = BrokerProcess(tmp_path, settings)
    with process.running_well():
        found = Secured(process, authority, key.read_bytes())
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert found.rest("PUT", "/admin/v2/tenants/acme", "admin", body=tenant).status == 204
        assert found.rest("PUT", "/admin/v2/namespaces/acme/data", "boss").status == 204
        for role, actions in RIGHTS.items():
            path = f"/admin/v2/namespaces/acme/data/permissions/{role}"
            assert found.rest("POST", path, "admin", body=actions).status == 204
        yield found


def options(secured: Secured, way: str, role: str | None, **more: str) -> dict[str, str]:
    """Tokens go over TLS, passwords do not."""
    by_token = way == "token"
    given = {
        "service.url": secured.url(TLS if by_token else PLAIN),
        "admin.url": secured.url(HTTPS if by_token else HTTP),
        "topic": TOPIC,
        **more,
    }
    if by_token:
        given["pulsar.client.tlsTrustCertsFilePath"] = str(secured.authority.certificate_path)
    if role is not None:
        given["pulsar.client.authPluginClassName"] = f"org.apache.pulsar.client.impl.auth.Authentication{way.title()}"
        given["pulsar.client.authParams"] = secret(secured, way, role)
    return given


def secret(secured: Secured, way: str, role: str) -> str:
    if way == "token":
        return f"token:{secured.token(role)}"
    return json.dumps({"userId": role, "password": f"password of {role}"})


def run(steps: list[dict[str, Any]], directory: Path) -> tuple[dict[str, Any], str]:
    """What came of each step, and all that was written to the log and the terminal."""
    job, result = directory / "job.json", directory / "result.json"
    job.write_text(json.dumps({"steps": steps, "result": str(result)}))
    command = [sys.executable, "-m", "tests.spark.secured_job", str(job)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    job.unlink()
    return json.loads(result.read_text()), done.stdout + done.stderr


def test_rights_hold_and_secrets_are_in_no_plan_log_error_or_checkpoint(secured: Secured, tmp_path: Path) -> None:
    with secured.client(secured.authentication("token", "writer")) as client:
        sent = sorted(each.decode() for each in publish(client, TOPIC, 200))
    steps: list[dict[str, Any]] = []
    for way in WAYS:
        for mode in MODES:
            given = options(secured, way, "reader", readMode=mode, startingOffsets="earliest")
            steps.append({"name": f"{way} {mode}", "what": "read", "options": given})
        for mode in MODES[1:]:
            for who, role in {"nobody": None, "without the right": "writer"}.items():
                given = options(secured, way, role, readMode=mode)
                steps.append({"name": f"{way} {mode} {who}", "what": "read", "options": given})
        mode, copy = STREAMS[way], f"{TOPIC}-{way}-copy"
        steps.append(
            {
                "name": f"{way} stream",
                "what": "stream",
                "options": options(secured, way, "reader", readMode=mode, startingOffsets="earliest"),
                "sink": options(secured, way, "both", topic=copy, delivery="effectively-once"),
                "checkpoint": str(tmp_path / f"checkpoint-{way}"),
            }
        )
        again = options(secured, way, "reader", topic=copy, readMode=mode)
        steps.append({"name": f"{way} copy", "what": "read", "options": again})
        written = options(secured, way, "writer", topic=f"{TOPIC}-{way}-written")
        steps.append({"name": f"{way} write", "what": "write", "options": written, "values": sent})
        for who, role in {"nobody": None, "without the right": "reader"}.items():
            given = options(secured, way, role)
            steps.append({"name": f"{way} write {who}", "what": "write", "options": given, "values": ["no"]})
    wrong = options(secured, "basic", "reader", readMode="bulk")
    wrong["pulsar.client.authParams"] = json.dumps({"userId": "reader", "password": "password of nobody"})
    steps.append({"name": "wrong password", "what": "read", "options": wrong})
    forged = options(secured, "token", None, readMode="broker")
    forged["pulsar.client.authParams"] = f"token:{credentials.token(credentials.secret_key(), sub='reader')}"
    steps.append({"name": "forged token", "what": "read", "options": forged})
    distrustful = options(secured, "token", "reader", readMode="broker")
    del distrustful["pulsar.client.tlsTrustCertsFilePath"]
    steps.append({"name": "unknown authority", "what": "read", "options": distrustful})

    results, log = run(steps, tmp_path)

    for way in WAYS:
        assert "error" not in results[f"{way} stream"], results[f"{way} stream"]["error"]
        for name in (*(f"{way} {mode}" for mode in MODES), f"{way} copy"):
            assert results[name].get("values") == sent, (name, results[name].get("error"))
        assert results[f"{way} write"] == {}
        for mode in (*MODES[1:], "write"):
            for who in ("nobody", "without the right"):
                assert "error" in results[f"{way} {mode} {who}"]
    for way in WAYS:
        for who in ("broker nobody", "write nobody"):
            assert "does not accept these credentials" in results[f"{way} {who}"]["error"]
        assert "Client is not authorized to Produce" in results[f"{way} write without the right"]["error"]
    assert "does not accept these credentials" in results["forged token"]["error"]
    assert "Add the authority that signed it" in results["unknown authority"]["error"]
    assert "error" in results["wrong password"]
    checkpoints = "".join(
        path.read_text(errors="replace") for path in tmp_path.glob("checkpoint-*/**/*") if path.is_file()
    )
    assert checkpoints
    for secret_text in secrets_of(steps):
        for place, text in (("results", json.dumps(results)), ("log", log), ("checkpoints", checkpoints)):
            assert secret_text not in text, f"a secret is in the {place}"


def secrets_of(steps: list[dict[str, Any]]) -> set[str]:
    found = set()
    for step in steps:
        for given in (step["options"], step.get("sink", {})):
            text = given.get("pulsar.client.authParams", "")
            if text.startswith("token:"):
                found |= {text.removeprefix("token:"), text.removeprefix("token:").rpartition(".")[2]}
            elif text:
                found.add(json.loads(text)["password"])
    return found
