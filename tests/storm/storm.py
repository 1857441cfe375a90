"""One storm on one broker: its scenarios one after the other, and what is found when all is quiet again."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import pulsar
from tests.storm import at_rest
from tests.storm.brokers import StormBroker
from tests.storm.outcomes import Results
from tests.storm.scenario import TENANT, Place, Scenario, Scene
from tests.storm.workers import Workers, workers
from tests.support.rest import call

MASSIVE_PROCESSES, MASSIVE_THREADS = 10, 50


@dataclass(frozen=True)
class Size:
    """How much of a storm it is. A scenario has `processes * threads` actors and `rounds` rounds."""

    processes: int = 4
    threads: int = 15
    rounds: int = 2
    timeout_s: int = 15


def run(
    broker: StormBroker, names: list[str], size: Size, seed: int, told: Callable[[str], None] = lambda _: None
) -> Results:
    """All scenarios of `names` on a broker that nobody has used yet."""
    results = Results(broker.name)
    place = Place(
        broker.url,
        broker.http_url,
        uuid.uuid4().hex[:6],
        seed,
        size.processes,
        size.threads,
        size.rounds,
        size.timeout_s,
    )
    _prepare(place)
    resident_mb = broker.resident_mb()
    for names_of_a_kind, its_place in (
        ([name for name in names if not Scenario.ALL[name].is_massive], place),
        (
            [name for name in names if Scenario.ALL[name].is_massive],
            replace(place, processes=MASSIVE_PROCESSES, threads=MASSIVE_THREADS),
        ),
    ):
        if not names_of_a_kind:
            continue
        with workers(its_place.processes) as processes:
            for name in names_of_a_kind:
                _run_one(broker, its_place, processes, name, results)
                outcomes = [each for each in results.outcomes if each.scenario == name]
                told(f"{name}: {len(outcomes)} attempts in {results.took_s[name]:.1f} s")
    results.find("at rest", at_rest.check_broker(broker, resident_mb))
    return results


def _prepare(place: Place) -> None:
    """The tenant, and a first client, so that memory is compared with that of a broker at work."""
    body = {"allowedClusters": ["standalone"], "adminRoles": []}
    answer = call(f"{place.http_url}/admin/v2/tenants/{TENANT}", "PUT", body=body)
    assert answer.status in {204, 409}, answer
    scene = Scene(place, "first")
    scene.make_namespace()
    client = pulsar.Client(place.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(scene.topic(), "s")
    producer = client.create_producer(scene.topic())
    for _ in range(100):
        producer.send(b"x" * 1000)
        consumer.acknowledge(consumer.receive(10_000))
    client.close()


def _run_one(broker: StormBroker, place: Place, processes: Workers, name: str, results: Results) -> None:
    scenario, scene = Scenario.ALL[name], Scene(place, name)
    scene.make_namespace()
    scenario.prepare(scene)
    started_s = time.monotonic()
    scene.reports = processes.run(place, name, lambda meeting: scenario.meanwhile(scene, broker, meeting))
    results.took_s[name] = round(time.monotonic() - started_s, 1)
    scenario.judge(scene)
    at_rest.check_namespace(scene)
    answer = scene.rest("DELETE", f"/namespaces/{scene.namespace}?force=true")
    if answer.status not in {204, 404}:
        scene.find(f"the namespace cannot be deleted afterwards: {answer}")
    for report in scene.reports:
        results.outcomes += report.outcomes
        results.find(name, report.findings)
        if report.counts:
            results.count(name, report.counts)
    if scene.counts:
        results.count(name, scene.counts)
    results.find(name, scene.findings)
