"""What probes of a container's runner, or of a balancer, are told by a real broker: `/live`, `/ready`, `/status.html`."""

import time
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import secret_key
from tests.support.rest import Answer, call

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0


def answer_once(broker: BrokerProcess, path: str, status: int) -> Answer:
    """The answer, as soon as it has that status."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        answer = call(broker.http_url + path)
        if answer.status == status:
            return answer
        assert time.monotonic() < deadline_s, answer
        time.sleep(0.02)


def test_a_full_disk_fails_readiness_and_not_liveness(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    broker = BrokerProcess(tmp_path)
    broker.module = "tests.support.faulty_broker"
    broker.environment = {"FAULT_FILE": str(fault), "PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"}
    with broker.running():
        assert call(broker.http_url + "/ready") == Answer(200, "ok")
        fault.write_text("full")
        answer = answer_once(broker, "/ready", 503)
        assert "space" in answer.json["reason"]
        assert call(broker.http_url + "/admin/v2/brokers/ready") == answer
        assert call(broker.http_url + "/live") == Answer(200, "ok")
        fault.unlink()
        assert answer_once(broker, "/ready", 200) == Answer(200, "ok")


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer none"}], ids=["no token", "a wrong token"])
def test_probes_need_no_credentials_where_everything_else_does(tmp_path: Path, header: dict[str, str]) -> None:
    key = tmp_path / "key"
    key.write_bytes(secret_key())
    (tmp_path / "in-service").touch()
    settings = {
        "ledgerStore": "memory",
        "metadataStore": "memory",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": str(key),
        "statusFilePath": str(tmp_path / "in-service"),
    }
    with BrokerProcess(tmp_path, settings).running() as broker:
        for path, text in (("/live", "ok"), ("/ready", "ok"), ("/status.html", "OK")):
            assert call(broker.http_url + path, headers=header) == Answer(200, text)
        for path in ("/admin/v2/brokers/ready", "/admin/v2/brokers/health"):
            assert call(broker.http_url + path, headers=header).status == 401
