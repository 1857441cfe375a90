"""Topics, partitions and namespaces that are made, loaded, closed, ended and deleted while clients use them."""

import threading
import time
from typing import Any

import pulsar
from tests.storm.scenario import Actor, Scenario, Scene, Share
from tests.support.raw_client import NOTHING, RawClient

# What a client may be told of a topic that an operator takes away under it.
GONE = ("TopicNotFound", "AlreadyClosed", "NotConnected")


class AutomaticPartitions(Scenario):
    """Several clients use partitioned topics first, which the broker makes by itself."""

    name = "A3-automatic-partitions"
    PARTITIONS = 4

    def prepare(self, scene: Scene) -> None:
        kind = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": self.PARTITIONS}
        scene.set("autoTopicCreation", kind)

    def act(self, share: Share) -> None:
        for turn in range(share.place.rounds):
            topic = share.topic(turn)

            def use(actor: Actor, topic: str = topic) -> None:
                if actor.number % 4:
                    actor.subscribe(topic, f"s{actor.number % 5}")
                else:
                    actor.close(actor.produce(topic))

            share.together(use)
            partitions = share.common_client.get_topic_partitions(topic)
            if len(partitions) != self.PARTITIONS:
                share.find(f"{topic} has {len(partitions)} partitions")


class NamespaceDeleted(Scenario):
    """A namespace is deleted, not by force, while clients make topics in it: no topic stays without its namespace."""

    name = "A5-namespace-deleted"
    REFUSED = ("TopicNotFound", "BrokerMetadataError", "AuthorizationError", "NotAllowedError", "UnknownError")

    def act(self, share: Share) -> None:
        for turn in range(3 * share.place.rounds):
            namespace = f"{share.namespace}-{share.index}-{turn}"
            share.make_namespace(namespace)
            topic = share.topic("t", namespace)
            deleted = threading.Event()
            producers: list[tuple[Actor, pulsar.Producer]] = []

            def use(
                actor: Actor,
                namespace: str = namespace,
                topic: str = topic,
                deleted: Any = deleted,
                producers: Any = producers,
            ) -> None:
                if actor.number == share.numbers[0]:
                    if actor.rest("delete namespace", "DELETE", f"/namespaces/{namespace}", (409, 412)).status == 204:
                        deleted.set()
                    return
                producer = actor.produce(topic, *self.REFUSED, send_timeout_millis=3000)
                if producer is not None:
                    producers.append((actor, producer))

            share.together(use, threads=4)
            if deleted.is_set():
                for _, producer in producers:
                    self._send_after(share, producer)
            for actor, producer in producers:
                actor.close(producer)
            share.rest("DELETE", f"/namespaces/{namespace}?force=true")

    def _send_after(self, share: Share, producer: pulsar.Producer) -> None:
        try:
            producer.send(b"lost?")
        except pulsar.PulsarException:
            share.count("producers of a deleted namespace that were told")
        else:
            share.find("a message was receipted on a topic whose namespace is deleted")


class Replicas(Scenario):
    """Replicas of a service: each makes the partitioned topic, takes 409 for a yes and connects; then all grow it."""

    name = "A6-replicas"

    def act(self, share: Share) -> None:
        for turn in range(2 * share.place.rounds):
            topic = share.topic(turn)

            def begin(actor: Actor, topic: str = topic) -> None:
                actor.about("make partitions", "PUT", topic, "/partitions", 409, body=4)
                consumer = actor.subscribe(topic, f"s{actor.number % 5}")
                actor.about("grow partitions", "POST", topic, "/partitions", 409, 412, body=6)
                producer = actor.produce(topic)
                if producer is not None:
                    actor.send(producer, topic)
                actor.close(consumer, producer)

            share.together(begin, threads=max(2, share.place.threads // 2))
            partitions = share.common_client.get_topic_partitions(topic)
            if len(partitions) != 6:
                share.find(f"{topic} has {len(partitions)} partitions")


class LimitOfLoads(Scenario):
    """Many topics are loaded at once with a limit of five: they wait for one another."""

    name = "A8-limit-of-loads"
    KEY = "/brokers/configuration/maxConcurrentTopicLoadRequest"

    def prepare(self, scene: Scene) -> None:
        answer = scene.rest("POST", f"{self.KEY}/5")
        if answer.status >= 300:
            scene.find(f"the limit cannot be set: {answer}")

    def act(self, share: Share) -> None:
        def produce(actor: Actor) -> None:
            producers = [actor.produce(share.topic(f"{actor.number}-{index}")) for index in range(3)]
            actor.close(*producers)

        share.together(produce)

    def judge(self, scene: Scene) -> None:
        scene.rest("DELETE", self.KEY)


class Terminate(Scenario):
    """A topic is terminated under producers: who was receipted is in it, and a producer is closed before it is refused."""

    name = "A9-terminate"
    TOLD = ("TopicTerminated", "AlreadyClosed", "ProducerFenced")

    def prepare(self, scene: Scene) -> None:
        scene.keep_everything()

    def act(self, share: Share) -> None:
        for turn in range(share.place.rounds):
            topic = share.topic(turn)

            def use(actor: Actor, topic: str = topic) -> None:
                if actor.number == 0:
                    actor.pause(0.3)
                    actor.about("terminate", "POST", topic, "/terminate")
                elif actor.number % 5 == 1:
                    self._flood(actor, topic)
                else:
                    producer = actor.produce(topic, *self.TOLD)
                    deadline_s = time.monotonic() + share.place.timeout_s
                    while producer is not None and actor.send(producer, topic, *self.TOLD):
                        if time.monotonic() > deadline_s:
                            share.find("a producer goes on although its topic should have been terminated")
                            break

            self._make(share, topic)
            share.together(use)

    def _make(self, share: Share, topic: str) -> None:
        if share.is_first:
            assert share.about("PUT", topic).status == 204

    def _flood(self, actor: Actor, topic: str) -> None:
        """Messages by raw frames without waiting for receipts: what is said first, that it is closed or that it is refused?"""
        client = RawClient(actor.share.place.url)
        client.connect()
        said = client.open_producer(topic)
        if said["type"] != "PRODUCER_SUCCESS":
            client.close()
            return
        deadline_s = time.monotonic() + actor.share.place.timeout_s
        sequence_id, result = 0, "time-out"
        while time.monotonic() < deadline_s and result == "time-out":
            client.send_message(1, sequence_id)
            sequence_id += 1
            said = client.reply(0.001)
            if said != NOTHING and said["type"] != "SEND_RECEIPT":
                result = said["type"]
        actor.note("first word at the end", result, 0, is_expected=result == "CLOSE_PRODUCER")
        client.close()

    def judge(self, scene: Scene) -> None:
        for turn in range(scene.place.rounds):
            scene.check_kept(scene.topic(turn))


class UnloadedUnderClients(Scenario):
    """A topic is unloaded again and again while clients come, publish and go: everybody gets in, nothing is lost."""

    name = "A11-unloaded-under-clients"

    def prepare(self, scene: Scene) -> None:
        scene.keep_everything()

    def act(self, share: Share) -> None:
        topic = share.topic()

        def use(actor: Actor) -> None:
            if actor.number == 0:
                for _ in range(8):
                    actor.pause(0.2)
                    actor.about("unload", "PUT", topic, "/unload", 404, 409, 412)
            elif actor.number % 3:
                for _ in range(3):
                    kind = actor.random.choice(("Shared", "Failover"))
                    consumer = actor.subscribe(topic, kind, kind)
                    actor.pause(0.05)
                    actor.close(consumer)
            else:
                for _ in range(2):
                    producer = actor.produce(topic)
                    for _ in range(10):
                        if producer is not None:
                            actor.send(producer, topic)
                    actor.close(producer)

        for _ in range(share.place.rounds):
            share.together(use)

    def judge(self, scene: Scene) -> None:
        scene.check_kept(scene.topic())


class UnloadUnderLoad(Scenario):
    """A busy Shared subscription is unloaded three times: all comes, and how much comes again."""

    name = "A11-unload-under-load"
    MESSAGES = 2700

    def prepare(self, scene: Scene) -> None:
        assert scene.about("PUT", scene.topic(), "/subscription/s", "earliest").status == 204

    def act(self, share: Share) -> None:
        topic = share.topic()
        total = self.MESSAGES // share.place.processes * share.place.processes
        lock = threading.Lock()

        def use(actor: Actor) -> None:
            role = actor.number - share.numbers[0]
            if role == 0:
                self._publish(actor, topic, total // share.place.processes)
            elif role == 1 and share.is_first:
                for _ in range(3):
                    time.sleep(0.4)
                    actor.about("unload", "PUT", topic, "/unload")
            else:
                consumer = actor.subscribe(topic, "s")
                while True:
                    try:
                        message = consumer.receive(4000)
                    except pulsar.Timeout:
                        break
                    time.sleep(0.001)  # The work that somebody does with a message.
                    consumer.acknowledge(message)
                    with lock:
                        share.report.receipted.setdefault("received", []).append(message.data())
                actor.close(consumer)

        share.together(use, threads=4)

    def _publish(self, actor: Actor, topic: str, count: int) -> None:
        producer = actor.produce(topic, batching_enabled=False, block_if_queue_full=True)
        receipted = actor.share.report.receipted.setdefault(topic, [])
        for number in range(count):
            body = f"{actor.number}-{number}".encode()

            def noted(result: pulsar.Result, _id: object, body: Any = body) -> None:
                if result == pulsar.Result.Ok:
                    receipted.append(body)

            producer.send_async(body, noted)
            time.sleep(0.0005)
        actor.attempt("flush", producer.flush)
        actor.close(producer)

    def judge(self, scene: Scene) -> None:
        deliveries = sum(len(report.receipted.get("received", [])) for report in scene.reports)
        scene.counts["messages receipted"] = len(scene.receipted(scene.topic()))
        scene.counts["delivered again"] = deliveries - len(scene.receipted("received"))
        missing = scene.receipted(scene.topic()) - scene.receipted("received")
        if missing:
            scene.find(f"LOST {len(missing)} receipted messages were never delivered")


class MissingNamespace(Scenario):
    """Clients come to a namespace that is not there: each is told at once."""

    name = "A11-missing-namespace"
    TOLD = ("TopicNotFound", "AuthorizationError")

    def act(self, share: Share) -> None:
        def come(actor: Actor) -> None:
            topic = share.topic("t", f"{share.namespace}-missing")
            if actor.number % 2:
                actor.subscribe(topic, "s", "Shared", *self.TOLD)
            else:
                actor.produce(topic, *self.TOLD)

        share.together(come)


class DeletedAndMadeAgain(Scenario):
    """Topics are deleted by force under clients, who make them again."""

    name = "B-deleted-and-made-again"

    def act(self, share: Share) -> None:
        def use(actor: Actor) -> None:
            topic = share.topic(actor.number % 3)
            if actor.number < 3:
                for _ in range(6):
                    actor.pause(0.2)
                    actor.about("delete topic", "DELETE", topic, "?force=true", 404, 409, 412)
                return
            for _ in range(3):
                if actor.random.random() < 0.5:
                    actor.close(actor.subscribe(topic, "s", "Shared", *GONE))
                    continue
                producer = actor.produce(topic, *GONE)
                for _ in range(3):
                    if producer is not None:
                        actor.attempt("send", lambda producer=producer: producer.send(b"x"), *GONE)  # type: ignore[misc]
                actor.close(producer)

        for _ in range(share.place.rounds):
            share.together(use)
