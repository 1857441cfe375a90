"""`kill -9`: a policy or permission that was answered as set is there after it, at both levels."""

from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"
SET = (
    ("PUT", TOPIC, None),
    ("POST", f"{NAMESPACE}/publishRate", {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": -1}),
    ("POST", f"{NAMESPACE}/antiAffinity", "apart"),
    ("PUT", f"{NAMESPACE}/offloadThreshold", 99),
    ("POST", f"{TOPIC}/maxConsumers", 3),
    ("POST", f"{TOPIC}/s/dispatchRate", {"dispatchThrottlingRateInMsg": 4}),
    ("POST", f"{TOPIC}/permissions/role", ["consume"]),
)
READ = (
    f"{NAMESPACE}/publishRate",
    f"{NAMESPACE}/antiAffinity",
    f"{NAMESPACE}/offloadThreshold",
    f"{TOPIC}/maxConsumers",
    f"{TOPIC}/maxConsumers?applied=true",
    f"{TOPIC}/s/dispatchRate",
    f"{TOPIC}/permissions",
)


def test_policies_and_permissions_survive_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        for method, path, body in SET:
            assert call(broker.http_url + path, method, body=body).status == 204, path
        before = [call(broker.http_url + path, "GET").text for path in READ]
        assert all(before)
        broker.kill()
        broker.start()
        assert [call(broker.http_url + path, "GET").text for path in READ] == before
    finally:
        broker.stop()
