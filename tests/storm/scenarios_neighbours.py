"""What else goes on at once beside what is loaded, subscribed and closed: access modes, patterns, schemas, policies, compaction."""

import contextlib
import json
import re
import time

import pulsar
from tests.storm.scenario import Actor, Scenario, Scene, Share

# A producer that another one has taken the topic from, or that found it taken.
TAKEN = ("ProducerFenced", "ProducerBusy", "AlreadyClosed")


class AccessModes(Scenario):
    """Producers of all access modes on one topic: at most one exclusive one at a time, and who waits gets in when it leaves."""

    name = "B-access-modes"

    def prepare(self, scene: Scene) -> None:
        scene.keep_everything()

    def act(self, share: Share) -> None:
        topic = share.topic()
        modes = pulsar.ProducerAccessMode

        def produce(actor: Actor) -> None:
            waits = actor.number % 4 == 1
            mode = (
                modes.WaitForExclusive if waits else actor.random.choice([modes.Exclusive, modes.ExclusiveWithFencing])
            )
            for _ in range(2):
                # One who waits is in when all before it have left, each of whom holds the topic for a moment only.
                producer = actor.produce(topic, *TAKEN, access_mode=mode)
                if producer is not None:
                    actor.send(producer, topic, *TAKEN)
                actor.pause()
                actor.close(producer)

        for _ in range(share.place.rounds):
            share.together(produce, threads=max(2, share.place.threads // 2))

    def judge(self, scene: Scene) -> None:
        scene.check_kept(scene.topic())


class Patterns(Scenario):
    """Consumers of a pattern come while topics that match appear and go: what is published on those that stay arrives."""

    name = "B-patterns"
    STAYING = 6

    def prepare(self, scene: Scene) -> None:
        for index in range(self.STAYING):
            assert scene.about("PUT", scene.topic(f"stays-{index}")).status == 204

    def act(self, share: Share) -> None:
        pattern = re.compile(f"persistent://{share.namespace}/.*s-.*")

        def use(actor: Actor) -> None:
            if actor.number % 2:
                # A topic of the list may be gone before the consumer comes to it.
                consumer = actor.subscribe(pattern, f"s{actor.number}", "Shared", "TopicNotFound")
                self._receive(actor, consumer)
            else:
                for turn in range(2):
                    topic = share.topic(f"goes-{actor.number}-{turn}")
                    actor.close(actor.produce(topic))
                    actor.about("delete topic", "DELETE", topic, "?force=true", 404)

        share.together(use, threads=max(4, share.place.threads // 2))

    def _receive(self, actor: Actor, consumer: pulsar.Consumer | None) -> None:
        if consumer is None:
            return
        topics = {actor.share.topic(f"stays-{index}") for index in range(self.STAYING)}
        producers = {topic: actor.produce(topic) for topic in topics}
        for topic, producer in producers.items():
            actor.send(producer, topic)
        deadline_s = time.monotonic() + actor.share.place.timeout_s
        while topics and time.monotonic() < deadline_s:
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(200)
                consumer.acknowledge(message)
                topics.discard(message.topic_name())
        if topics:
            actor.share.find(f"a consumer of a pattern does not hear of {len(topics)} of {self.STAYING} topics")
        actor.close(consumer, *producers.values())


class Schemas(Scenario):
    """Producers and consumers bring versions of a schema to a new topic at once; all fit, and one version is made of each."""

    name = "B-schemas"
    VERSIONS = 3

    def act(self, share: Share) -> None:
        def record(version: int) -> pulsar.schema.Schema:
            fields = [{"name": f"f{index}", "type": ["null", "int"], "default": None} for index in range(version + 1)]
            definition = {"type": "record", "name": "R", "fields": fields}
            return pulsar.schema.AvroSchema(None, schema_definition=definition)

        for turn in range(share.place.rounds):
            topic = share.topic(turn)

            def use(actor: Actor, topic: str = topic) -> None:
                schema = record(actor.random.randrange(self.VERSIONS))
                if actor.number % 2:
                    actor.close(actor.produce(topic, "IncompatibleSchema", schema=schema))
                else:
                    actor.close(actor.subscribe(topic, "s", "Shared", "IncompatibleSchema", schema=schema))

            share.together(use)
            name = topic.replace("persistent://", "")
            answer = share.rest("GET", f"/schemas/{name}/schemas")
            found = len(json.loads(answer.text)["getSchemaResponses"]) if answer.status == 200 else answer
            if not isinstance(found, int) or found > self.VERSIONS:
                share.find(f"{topic} has {found} versions of its schema")


class Deduplication(Scenario):
    """Producers with names come back again and again, with an unload in between: each message is there exactly once."""

    name = "B-deduplication"

    def prepare(self, scene: Scene) -> None:
        scene.keep_everything()
        scene.set("deduplication", True)

    def act(self, share: Share) -> None:
        topic = share.topic()

        def use(actor: Actor) -> None:
            if actor.number == 0:
                for _ in range(5):
                    actor.pause(0.2)
                    actor.about("unload", "PUT", topic, "/unload", 404, 409)
                return
            for _ in range(3):
                # The name is taken until the broker has seen that its owner has left.
                producer = actor.produce(topic, "ProducerBusy", producer_name=f"p{actor.number}")
                for _ in range(5):
                    if producer is not None:
                        actor.send(producer, topic)
                actor.close(producer)

        share.together(use, threads=max(2, share.place.threads // 2))

    def judge(self, scene: Scene) -> None:
        found = scene.check_kept(scene.topic())
        if len(found) != len(set(found)):
            scene.find(f"{len(found) - len(set(found))} messages are there twice")


class Policies(Scenario):
    """An operator changes policies of the namespace and looks at everything while clients come and go."""

    name = "B-policies-and-statistics"
    POLICIES = (
        ("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        ("messageTTL", 3600),
        ("maxConsumersPerTopic", 1000),
        ("maxProducersPerTopic", 1000),
        ("maxUnackedMessagesPerConsumer", 5000),
        ("deduplication", False),
        (
            "dispatchRate",
            {"dispatchThrottlingRateInMsg": 100_000, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1},
        ),
        ("publishRate", {"publishThrottlingRateInMsg": 100_000, "publishThrottlingRateInByte": -1}),
        ("schemaCompatibilityStrategy", "FULL"),
    )
    PUT = ("schemaCompatibilityStrategy",)
    LOOKS = ("/stats", "/internalStats", "/subscriptions", "/backlogSize")

    def act(self, share: Share) -> None:
        topic = share.topic()

        def use(actor: Actor) -> None:
            role = actor.number % 5
            if role == 0:
                for _ in range(5):
                    policy, value = actor.random.choice(self.POLICIES)
                    method = "PUT" if policy in self.PUT else "POST"
                    actor.rest("set policy", method, f"/namespaces/{share.namespace}/{policy}", (409,), value)
            elif role == 1:
                for _ in range(5):
                    look = actor.random.choice(self.LOOKS[:3])
                    actor.about("look", "GET", topic, look, 404)
            elif role == 2:
                consumer = actor.subscribe(topic, f"s{actor.number % 3}")
                actor.pause(0.1)
                actor.close(consumer)
            else:
                producer = actor.produce(topic)
                for _ in range(5):
                    if producer is not None:
                        actor.send(producer, topic)
                actor.close(producer)

        for _ in range(share.place.rounds):
            share.together(use)


class CompactAndTruncate(Scenario):
    """A topic is compacted, truncated and unloaded while it is written and read compacted."""

    name = "A11-truncated-while-compacted"

    def act(self, share: Share) -> None:
        topic = share.topic()

        def use(actor: Actor) -> None:
            role = actor.number % 5
            if role == 0:
                for _ in range(4):
                    actor.pause(0.1)
                    actor.about("compact", "PUT", topic, "/compaction", 404, 409)
            elif role == 1:
                for _ in range(3):
                    actor.pause(0.15)
                    actor.about("truncate", "DELETE", topic, "/truncate", 404, 409, 412)
            elif role == 2:
                for _ in range(2):
                    consumer = actor.subscribe(topic, f"r{actor.number}", "Exclusive", is_read_compacted=True)
                    actor.pause(0.2)
                    actor.close(consumer)
            else:
                producer = actor.produce(topic)
                for number in range(20):
                    if producer is not None:
                        actor.send(producer, topic, partition_key=f"k{number % 7}")
                actor.close(producer)

        for _ in range(share.place.rounds):
            share.together(use)


class NonPersistent(Scenario):
    """Consumers and producers come to and go from new non-persistent topics."""

    name = "B-non-persistent"

    def act(self, share: Share) -> None:
        def use(actor: Actor) -> None:
            topic = share.topic(actor.number % 3).replace("persistent", "non-persistent", 1)
            for _ in range(2):
                consumer = actor.subscribe(topic, "s")
                producer = actor.produce(topic)
                if producer is not None:
                    actor.attempt("send", lambda producer=producer: producer.send(b"x"))  # type: ignore[misc]
                actor.close(producer, consumer)

        for _ in range(share.place.rounds):
            share.together(use)


class Everything(Scenario):
    """Whatever a client or an operator may do, at random, on four topics of one namespace."""

    name = "C-everything-at-once"
    SECONDS = 3.0
    REFUSED = ("TopicNotFound", "AlreadyClosed", "NotConnected", "ConsumerBusy", "SubscriptionNotFound", "ProducerBusy")
    REFUSED += ("ProducerFenced", "TopicTerminated", "NotAllowedError", "ConsumerNotFound", "UnknownError")  # type: ignore[assignment]
    # An operation on a subscription that another one moves or takes away at this moment.
    REFUSED += ("BrokerMetadataError",)  # type: ignore[assignment]
    STATUSES = (400, 404, 405, 409, 412)

    def act(self, share: Share) -> None:
        share.together(self._wander)

    def _wander(self, actor: Actor) -> None:
        ends_s = time.monotonic() + self.SECONDS * actor.share.place.rounds
        deeds = (
            [self._consume] * 4 + [self._publish] * 3 + [self._read, self._unsubscribe, self._operate, self._operate]
        )
        while time.monotonic() < ends_s:
            actor.random.choice(deeds)(actor, actor.share.topic(actor.random.randrange(4)))
            actor.pause(0.05)

    def _consume(self, actor: Actor, topic: str) -> None:
        kind = actor.random.choice(("Shared", "Exclusive", "Failover", "Key_Shared"))
        consumer = actor.subscribe(topic, actor.random.choice(("a", "b", kind)), kind, *self.REFUSED)
        if consumer is None:
            return
        for _ in range(actor.random.randrange(4)):
            try:
                message = consumer.receive(50)
            except pulsar.PulsarException:
                break
            actor.attempt("acknowledge", lambda message=message: consumer.acknowledge(message), *self.REFUSED)  # type: ignore[misc]
        if actor.random.random() < 0.2:
            actor.attempt("seek", lambda: consumer.seek(pulsar.MessageId.earliest), *self.REFUSED)
        actor.close(consumer)

    def _publish(self, actor: Actor, topic: str) -> None:
        mode = actor.random.choice(
            [pulsar.ProducerAccessMode.Shared] * 4 + [pulsar.ProducerAccessMode.ExclusiveWithFencing]
        )
        producer = actor.produce(topic, *self.REFUSED, access_mode=mode, send_timeout_millis=10_000)
        if producer is None:
            return
        for _ in range(actor.random.randrange(6)):
            body, key = b"x" * actor.random.randrange(2000), str(actor.random.randrange(5))
            actor.attempt("send", lambda body=body, key=key: producer.send(body, partition_key=key), *self.REFUSED)  # type: ignore[misc]
        actor.close(producer)

    def _read(self, actor: Actor, topic: str) -> None:
        def read() -> pulsar.Reader:
            return actor.client.create_reader(topic, pulsar.MessageId.earliest)

        reader = actor.attempt("create reader", read, *self.REFUSED)
        actor.pause(0.05)
        actor.close(reader)

    def _unsubscribe(self, actor: Actor, topic: str) -> None:
        consumer = actor.subscribe(topic, "gone", "Shared", *self.REFUSED)
        if consumer is not None:
            actor.attempt("unsubscribe", consumer.unsubscribe, *self.REFUSED)
            actor.close(consumer)

    def _operate(self, actor: Actor, topic: str) -> None:
        deeds = [
            ("PUT", "/unload", None),
            ("DELETE", "?force=true", None),
            ("DELETE", "/subscription/a?force=true", None),
            ("PUT", "/subscription/a", "earliest"),
            ("POST", f"/subscription/a/resetcursor/{int(time.time() * 1000)}", None),
            ("POST", "/subscription/b/skip_all", None),
            ("PUT", "/compaction", None),
            ("DELETE", "/truncate", None),
            ("GET", "/stats", None),
            ("GET", "/internalStats", None),
        ]
        method, path, body = actor.random.choice(deeds)
        action = f"{method} {path.split('?')[0].strip('/').split('/')[-1] or 'topic'}"
        if "resetcursor" in path:
            action = "POST resetcursor"
        actor.about(action, method, topic, path, *self.STATUSES, body=body)
