"""What must hold when all clients have left: nobody is left behind, the broker is well and needs no more memory than before."""

import time

from tests.storm.brokers import StormBroker
from tests.storm.scenario import Scene

PATIENCE_S = 10.0
MOST_TOPICS = 60
MOST_GROWTH_MB = 120
"""What a broker may need more after a storm than after its first client: caches, and pages that the allocator keeps."""


def check_namespace(scene: Scene) -> None:
    """Nobody is left on any topic of the scenario: no producer, no consumer, no subscription of a reader."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (left := _left_behind(scene)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    for text in left:
        scene.find(text)


def _left_behind(scene: Scene) -> list[str]:
    left = []
    topics = []
    for domain in ("persistent", "non-persistent"):
        answer = scene.rest("GET", f"/{domain}/{scene.namespace}")
        topics += [topic for topic in answer.json if topic.startswith(f"{domain}://")]
    for topic in topics[:MOST_TOPICS]:
        answer = scene.about("GET", topic, "/stats")
        if answer.status == 404:
            continue
        if answer.status != 200:
            left.append(f"{topic} has no statistics: {answer}")
            continue
        if answer.json["publishers"]:
            left.append(f"{topic} has {len(answer.json['publishers'])} producers that nobody holds")
        for name, subscription in answer.json["subscriptions"].items():
            if subscription["consumers"]:
                left.append(f"{topic} has {len(subscription['consumers'])} consumers of {name} that nobody holds")
            if topic.startswith("persistent") and not subscription["isDurable"]:
                left.append(f"{topic} has the subscription {name} of a reader that has left")
    return left


def check_broker(broker: StormBroker, resident_mb: int) -> list[str]:
    """Of the whole broker, in the end; `resident_mb` is what it needed in the beginning."""
    findings = []
    deadline_s = time.monotonic() + PATIENCE_S
    while (connections := broker.metric("pulsar_active_connections")) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    if connections:
        findings.append(f"{connections:.0f} connections are left")
    if not broker.is_healthy():
        findings.append("the health check does not answer")
    if bugs := broker.metric("pybroker_bugs_total"):
        findings.append(f"the broker met {bugs:.0f} bugs")
    errors = broker.errors()
    findings += [f"{len(errors)} errors in the log: {errors[0][:300]}"] if errors else []
    growth_mb = broker.resident_mb() - resident_mb
    if growth_mb > MOST_GROWTH_MB:
        findings.append(f"it needs {growth_mb} MB more than in the beginning")
    return findings
