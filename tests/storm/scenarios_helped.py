"""Operators explain what stands still, list what is held, and help single messages along, while clients come and go."""

import contextlib
import time
from datetime import timedelta

import pulsar
from tests.storm.scenario import Actor, Scenario, Scene, Share

KINDS = ("Shared", "Key_Shared", "Failover")


class Helped(Scenario):
    """Single messages are acknowledged, sent again, put off and brought forward by operators beside consumers that take and keep
    them, and unloads; what was acknowledged stays so, and everything else still comes."""

    name = "B-explained-and-helped"
    is_ours = True
    LOOKS = (
        "unacked?limit=1000",
        "unacked?minAgeMs=100",
        "ackHoles",
        "drainingHashes",
        "waiting",
        "delayed",
        "hash?key=k1",
    )
    LOOKS += ("explain", "explain?key=k1", "explain?consumer=c1")  # type: ignore[assignment]
    # What is gone or not there yet; what somebody holds, or nobody; what the type does not do.
    STATUSES = (404, 409, 412)

    def prepare(self, scene: Scene) -> None:
        scene.keep_everything()
        for kind in KINDS:
            assert scene.about("PUT", scene.topic(), f"/subscription/{kind}", "earliest").status == 204

    def act(self, share: Share) -> None:
        topic = share.topic()

        def use(actor: Actor) -> None:
            for _ in range(4):
                if actor.number == 0:
                    actor.pause(2)
                    actor.about("unload", "PUT", topic, "/unload")
                elif actor.number % 2:
                    self._hold(actor, topic)
                else:
                    self._help(actor, topic)

        for _ in range(share.place.rounds):
            share.together(use)

    def _hold(self, actor: Actor, topic: str) -> None:
        kind = KINDS[actor.number % len(KINDS)]
        queue = actor.random.choice((1, 100))
        consumer = actor.subscribe(topic, kind, kind, receiver_queue_size=queue, consumer_name=f"c{actor.number}")
        if consumer is None:
            return
        for _ in range(15):
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(50)
                if actor.random.random() < 0.3:
                    consumer.negative_acknowledge(message)
        actor.close(consumer)

    def _help(self, actor: Actor, topic: str) -> None:
        producer = actor.produce(topic)
        if producer is None:
            return
        sent: list[tuple[bytes, pulsar.MessageId]] = []
        for number in range(6):
            wait = timedelta(milliseconds=actor.random.choice((0, 0, 50, 2000)))
            body = f"{actor.number} {actor.random.random()}".encode()
            options = {"partition_key": f"k{number % 4}", **({"deliver_after": wait} if wait else {})}
            message_id = actor.attempt("send", lambda body=body, options=options: producer.send(body, **options))  # type: ignore[misc]
            if message_id is not None:
                sent.append((body, message_id))
        actor.close(producer)
        for body, message_id in sent:
            kind = actor.random.choice((*KINDS, *KINDS[:2]))
            at = f"/subscription/{kind}/message/{message_id.ledger_id()}/{message_id.entry_id()}"
            is_acknowledged = self._deed(actor, topic, at)
            with actor.share.noting:
                for each in KINDS:
                    owed_or_not = f"{topic} {each}{' acknowledged' if is_acknowledged and each == kind else ''}"
                    actor.share.report.receipted.setdefault(owed_or_not, []).append(body)
            actor.about("look", "GET", topic, f"/subscription/{kind}/{actor.random.choice(self.LOOKS)}", *self.STATUSES)
            of_message = f"/subscription/{kind}/explain?messageId={message_id.ledger_id()}:{message_id.entry_id()}"
            actor.about("explain", "GET", topic, of_message)

    def _deed(self, actor: Actor, topic: str, at: str) -> bool:
        """Do something to one message; whether it is acknowledged by that."""
        deed = actor.random.choice(("acknowledge", "redeliver", "put off", "bring forward"))
        if deed == "put off":
            wait_ms = actor.random.choice((0, 100, 1000))
            body = {"deliverAt": int(time.time() * 1000) + wait_ms}
            actor.about(deed, "PUT", topic, f"{at}/delay", *self.STATUSES, body=body)
        elif deed == "bring forward":
            actor.about(deed, "DELETE", topic, f"{at}/delay", *self.STATUSES)
        else:
            return (
                actor.about(deed, "POST", topic, f"{at}/{deed}", *self.STATUSES).status == 204 and deed == "acknowledge"
            )
        return False

    def judge(self, scene: Scene) -> None:
        topic = scene.topic()
        for kind in KINDS:
            acknowledged = scene.receipted(f"{topic} {kind} acknowledged")
            found = scene.check_kept(topic, kind, kind=kind, wanted=scene.receipted(f"{topic} {kind}"))
            if back := acknowledged & set(found):
                scene.find(
                    f"{len(back)} messages that an operator acknowledged come again on {kind}: {sorted(back)[:3]}"
                )
