"""`pybroker diagnose`: one archive with everything that a report needs, and without secrets."""

import base64
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import jwt
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import connected
from tests.support.rest import call

SECRET_KEY = b"a-secret-key-that-must-not-leave-32"
PAYLOAD = b"the contents of a message"
TOPIC = "persistent://public/default/orders"


def diagnose(broker: BrokerProcess, archive: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "pybroker",
        "diagnose",
        "--url",
        broker.http_url,
        "--output",
        str(archive),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        files = {member.name.partition("/")[2]: opened.extractfile(member) for member in opened}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_archive_has_state_of_stuck_topic(tmp_path: Path) -> None:
    archive = tmp_path / "report.tar.gz"
    with BrokerProcess(tmp_path).running_well() as broker, connected(broker) as client:
        client.subscribe(TOPIC, sub_type="Shared", subscription="billing")  # no permits: nothing is delivered
        client.open_producer(TOPIC)
        client.send_message(1, 0, PAYLOAD)
        client.reply()
        done = diagnose(broker, archive)
        assert done.returncode == 0, done.stderr
        assert "Not collected" not in done.stdout
    assert archive.stat().st_mode & 0o077 == 0
    files = contents(archive)
    process = json.loads(files["process.json"])
    assert process["disk"]["free"] > 0
    assert any("MainThread" in name for name in process["threads"])
    assert process["taskCount"] >= len(process["tasks"]) > 0
    assert b"connection.opened" in files["log.txt"]
    assert b"pulsar_active_connections" in files["metrics.txt"]
    assert json.loads(files["configuration.json"])["dataDirectory"]
    assert json.loads(files["explain.json"])["topics"][0]["topic"] == TOPIC
    assert json.loads(files["topics/0-explain.json"])
    assert json.loads(files["topics/0-stats.json"])["subscriptions"]["billing"]["msgBacklog"] == 1
    assert json.loads(files["topics/0-internal.json"])["numberOfEntries"] == 1
    assert not [name for name, data in files.items() if PAYLOAD in data]


def test_archive_contains_no_secret(tmp_path: Path) -> None:
    key = base64.b64encode(SECRET_KEY).decode()
    token = jwt.encode({"sub": "admin"}, SECRET_KEY, algorithm="HS256")
    (tmp_path / "token").write_text(token)
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "superUserRoles": "admin",
        "tokenSecretKey": f"data:;base64,{key}",
    }
    archive = tmp_path / "report.tar.gz"
    with BrokerProcess(tmp_path, settings).running() as broker:
        assert diagnose(broker, archive).returncode == 1, "only a superuser may"
        assert not archive.exists()
        # Credentials in requests of each kind, right and wrong ones.
        call(f"{broker.http_url}/admin/v2/clusters?token={token}")
        call(f"{broker.http_url}/admin/v2/tenants/x?token={token}", "DELETE")
        call(f"{broker.http_url}/admin/v2/clusters", headers={"Authorization": f"Bearer {token}x"})
        done = diagnose(broker, archive, "--token-file", str(tmp_path / "token"))
        assert done.returncode == 0, done.stderr
    files = contents(archive)
    signature = token.rpartition(".")[2]
    for name, data in files.items():
        for secret in (SECRET_KEY.decode(), key, token, signature):
            assert not re.search(re.escape(secret.encode()), data), name
    assert json.loads(files["configuration.json"])["tokenSecretKey"] not in {"", f"data:;base64,{key}"}
