"""Many who subscribe, seek, unsubscribe and leave at once."""

import time
from typing import Any

import pulsar
from tests.storm.scenario import Actor, Scenario, Scene, Share
from tests.support.raw_client import CLOSED, NOTHING, RawClient

from pybroker.wire import pulsar_api_pb2 as pb

TYPES = ("Shared", "Failover", "Key_Shared", "Exclusive")
BUSY = "ConsumerBusy"


class FirstSubscribes(Scenario):
    """The first subscribes of a new topic come all at once: one name, of each type; only one may have an Exclusive one."""

    name = "A1-first-subscribes"

    def act(self, share: Share) -> None:
        for turn in range(share.place.rounds):
            for kind in TYPES:
                topic = share.topic(f"{kind}-{turn}")
                allowed = (BUSY,) if kind == "Exclusive" else ()

                def subscribe(actor: Actor, topic: str = topic, kind: str = kind, allowed: Any = allowed) -> None:
                    if actor.subscribe(topic, "s", kind, *allowed) is not None and kind == "Exclusive":
                        share.count("exclusive consumers")

                share.together(subscribe)
        share.meet()

    def judge(self, scene: Scene) -> None:
        holders = sum(report.counts["exclusive consumers"] for report in scene.reports)
        if holders != scene.place.rounds:
            scene.find(f"{holders} consumers are in on {scene.place.rounds} Exclusive subscriptions")


class OwnNames(Scenario):
    """The first subscribes of a new topic, each with a name of its own, and of mixed types with two names."""

    name = "A1-names-and-types"

    def act(self, share: Share) -> None:
        for turn in range(share.place.rounds):
            topic = share.topic(f"own-{turn}")
            share.together(lambda actor, topic=topic: actor.subscribe(topic, f"s{actor.number}", "Exclusive"))  # type: ignore[misc]
            mixed = share.topic(f"mixed-{turn}")

            def subscribe(actor: Actor, topic: str = mixed) -> None:
                kind = actor.random.choice(TYPES)
                actor.subscribe(topic, f"s{actor.number % 2}", kind, BUSY)

            share.together(subscribe)


class ListsOfTopics(Scenario):
    """Consumers of lists of new topics, all at once."""

    name = "A1-lists-of-topics"

    def act(self, share: Share) -> None:
        for turn in range(share.place.rounds):
            topics = [share.topic(f"{turn}-{index}") for index in range(5)]

            def subscribe(actor: Actor, topics: Any = topics) -> None:
                mine = list(topics)
                actor.random.shuffle(mine)
                actor.subscribe(mine, "s")

            share.together(subscribe, threads=max(2, share.place.threads // 3))


class ComingAndGoing(Scenario):
    """Consumers that subscribe and close again and again on one subscription of each type."""

    name = "A1-subscribe-close"

    def act(self, share: Share) -> None:
        def come_and_go(actor: Actor) -> None:
            kind = TYPES[actor.number % 4]
            for _ in range(4):
                consumer = actor.subscribe(share.topic(kind), "s", kind, *((BUSY,) if kind == "Exclusive" else ()))
                actor.pause()
                actor.close(consumer)

        for _ in range(share.place.rounds):
            share.together(come_and_go)


class DurableAndReader(Scenario):
    """A durable subscription and readers of the same name at once: what the durable one is owed stays, whoever leaves."""

    name = "A2-durable-and-reader"
    MESSAGES = 60

    def act(self, share: Share) -> None:
        for turn in range(share.place.rounds):
            topic = share.topic(f"{share.index}-{turn}")

            def use(actor: Actor, topic: str = topic) -> None:
                if actor.number != share.numbers[0]:
                    self._read(actor, topic)
                    return
                consumer = actor.subscribe(topic, "s", "Shared", "NotAllowedError", BUSY)
                if consumer is None:
                    share.count("durable refused")
                    return
                producer = actor.produce(topic)
                for _ in range(self.MESSAGES):
                    actor.send(producer, topic)
                actor.close(producer, consumer)

            share.together(use, threads=4)

    def _read(self, actor: Actor, topic: str) -> None:
        """A reader that takes some messages and leaves, by raw frames, since the official one chooses its name itself."""
        for _ in range(3):
            client = RawClient(actor.share.place.url)
            client.connect()
            started_s = time.monotonic()
            said = client.subscribe(topic, sub_type="Exclusive", subscription="s", durable=False)
            result = "ok" if said["type"] == "SUCCESS" else said.get("error", said["type"])
            took_ms = (time.monotonic() - started_s) * 1000
            allowed = {"ok", "ConsumerBusy", "NotAllowedError"}
            actor.note("subscribe reader", result, took_ms, is_expected=result in allowed)
            client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=20)
            actor.pause(0.1)
            client.close()

    def judge(self, scene: Scene) -> None:
        for topic in {topic for report in scene.reports for topic in report.receipted}:
            scene.check_kept(topic, "s")


class SubscribeDuringSeek(Scenario):
    """Consumers come and go while another seeks and an operator resets the subscription."""

    name = "A4-subscribe-during-seek"

    def prepare(self, scene: Scene) -> None:
        scene.keep_everything()

    def act(self, share: Share) -> None:
        topic = share.topic()

        def use(actor: Actor) -> None:
            if actor.number == 0:
                producer = actor.produce(topic)
                for _ in range(50):
                    actor.send(producer, topic)
            elif actor.number == 1:
                consumer = actor.subscribe(topic, "s")
                for _ in range(10):
                    # While another one resets it, a seek may be refused.
                    actor.attempt("seek", lambda: consumer.seek(pulsar.MessageId.earliest), *SEEK_REFUSED)
                    actor.pause()
            elif actor.number == 2:
                for _ in range(10):
                    actor.pause(0.05)
                    path = f"/subscription/s/resetcursor/{int(time.time() * 1000)}"
                    actor.about("reset by REST", "POST", topic, path, 404, 409, 412)
            else:
                for _ in range(3):
                    consumer = actor.subscribe(topic, "s")
                    actor.pause(0.05)
                    actor.close(consumer)

        for _ in range(share.place.rounds):
            share.together(use)

    def judge(self, scene: Scene) -> None:
        scene.check_kept(scene.topic())


SEEK_REFUSED = ("UnknownError", "NotAllowedError", "BrokerPersistenceError", "BrokerMetadataError", "NotConnected")


class DeletedWhileSubscribing(Scenario):
    """Subscriptions are deleted by force while consumers come; whoever is in afterwards receives what is published."""

    name = "A7-deleted-while-subscribing"
    PATIENCE_S = 20.0

    def act(self, share: Share) -> None:
        topic = share.topic()

        def use(actor: Actor) -> None:
            name = f"s{actor.number // 2}"
            if actor.number % 2:
                for _ in range(6):
                    actor.pause(0.05)
                    path = f"/subscription/{name}?force=true"
                    actor.about("delete subscription", "DELETE", topic, path, 404, 409, 412)
                return
            # The official client opens nothing again that an operator has deleted, unless the broker closes it so.
            consumer = actor.subscribe(topic, name, "Shared", "SubscriptionNotFound")
            if consumer is not None:
                consumers.append((actor, consumer))

        producer = share.common_client.create_producer(topic)
        consumers: list[tuple[Actor, pulsar.Consumer]] = []
        share.together(use)
        share.meet()
        deadline_s = time.monotonic() + self.PATIENCE_S
        while consumers and time.monotonic() < deadline_s:
            producer.send(b"hello")
            consumers[:] = [each for each in consumers if not self._has_received(*each)]
        for _, consumer in consumers:
            share.find(f"a consumer receives nothing; is_connected: {consumer.is_connected()}")

    def _has_received(self, actor: Actor, consumer: pulsar.Consumer) -> bool:
        started_s = time.monotonic()
        try:
            consumer.receive(200)
        except pulsar.Timeout:
            return False
        actor.note("receive", "ok", (time.monotonic() - started_s) * 1000, is_expected=True)
        return True


class SubscriptionsByRest(Scenario):
    """Subscriptions of one name are made by REST at once: one answer is 204, the others 409."""

    name = "A11-subscriptions-by-rest"

    def act(self, share: Share) -> None:
        for turn in range(share.place.rounds):
            topic = share.topic(turn)

            def make(actor: Actor, topic: str = topic) -> None:
                path = f"/subscription/s{actor.number % 3}"
                actor.about("make subscription", "PUT", topic, path, 409, body="latest")

            share.together(make)


class TooManySubscriptions(Scenario):
    """No more subscriptions than are allowed get in while some are being made."""

    name = "A11-limit-of-subscriptions"
    MOST = 5

    def prepare(self, scene: Scene) -> None:
        scene.set("maxSubscriptionsPerTopic", self.MOST)

    def act(self, share: Share) -> None:
        def subscribe(actor: Actor) -> None:
            actor.subscribe(share.topic(), f"s{actor.number}", "Exclusive", "NotAllowedError", "UnknownError")

        share.together(subscribe)

    def judge(self, scene: Scene) -> None:
        answer = scene.about("GET", scene.topic(), "/subscriptions")
        if answer.status != 200 or len(answer.json) > self.MOST:
            scene.find(f"more than {self.MOST} subscriptions: {answer.text}")


class BurstOfSubscribes(Scenario):
    """One connection asks for 500 consumers of a topic that nobody has loaded; each gets an answer."""

    name = "A10-burst-of-subscribes"
    REQUESTS = 500

    def act(self, share: Share) -> None:
        share.together(lambda actor: burst(actor, pb.BaseCommand.SUBSCRIBE, self.REQUESTS), threads=1)


class BurstOfProducers(Scenario):
    """One connection asks for 1,500 producers of a topic that nobody has loaded; each gets an answer."""

    name = "A10-burst-of-producers"
    REQUESTS = 1500

    def act(self, share: Share) -> None:
        share.together(lambda actor: burst(actor, pb.BaseCommand.PRODUCER, self.REQUESTS), threads=1)


def burst(actor: Actor, command: "pb.BaseCommand.Type", requests: int) -> None:
    topic = actor.share.topic(actor.number)
    client = RawClient(actor.share.place.url)
    client.connect()
    client.look_up(topic)
    started_s = time.monotonic()
    for number in range(requests):
        fields = {"topic": topic, "request_id": 1000 + number}
        if command == pb.BaseCommand.PRODUCER:
            client.send(command, producer_id=number, **fields)
        else:
            shared = pb.CommandSubscribe.Shared
            client.send(command, consumer_id=number, subscription=f"s{number % 10}", subType=shared, **fields)
    action = pb.BaseCommand.Type.Name(command)
    answered = 0
    while answered < requests:
        said = client.reply(actor.share.place.timeout_s)
        took_ms = (time.monotonic() - started_s) * 1000
        if said in (CLOSED, NOTHING):
            break
        if said["type"] in {"PRODUCER_SUCCESS", "SUCCESS", "ERROR"}:
            result = said.get("error", "ok")
            actor.note(action, result, took_ms, is_expected=result == "ok")
            answered += 1
    for _ in range(requests - answered):
        actor.note(action, "time-out", actor.share.place.timeout_s * 1000, is_expected=False)
    client.close()
