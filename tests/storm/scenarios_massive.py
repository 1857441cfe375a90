"""500 clients at once, 50 in each of ten processes, on 50 topics.

They run only when named: what they say about times holds for a machine that does nothing else.
"""

import time

import pulsar
from tests.storm.brokers import StormBroker
from tests.storm.scenario import Actor, Meeting, Scenario, Scene, Share

TOPICS = 50
RETURN_TIMEOUT_S = 120.0


def come_in(actor: Actor) -> tuple[pulsar.Consumer | None, pulsar.Producer | None]:
    """A client of its own with a subscription of its own and a producer."""
    client = actor.share.client()
    topic = actor.share.topic(actor.number % TOPICS)
    consumer = actor.attempt("subscribe", lambda: client.subscribe(topic, f"s{actor.number}"))
    producer = actor.attempt(
        "create producer", lambda: client.create_producer(topic, send_timeout_millis=int(RETURN_TIMEOUT_S * 1000))
    )
    return consumer, producer


class Start500(Scenario):
    """500 clients start at once on 50 topics that are not there yet."""

    name = "start500"
    is_massive = True

    def act(self, share: Share) -> None:
        def start(actor: Actor) -> None:
            started_s = time.monotonic()
            if None not in come_in(actor):
                actor.note("all of it", "ok", (time.monotonic() - started_s) * 1000, is_expected=True)

        share.together(start)
        share.meet()


class Return500(Scenario):
    """The broker is killed and started again under 500 clients: each publishes and receives again."""

    name = "return500"
    is_massive = True

    def act(self, share: Share) -> None:
        clients: dict[int, tuple[pulsar.Consumer | None, pulsar.Producer | None]] = {}
        share.together(lambda actor: clients.update({actor.number: come_in(actor)}))
        share.meet_main()  # all are in
        share.meet_main()  # it is killed
        killed_s = time.monotonic()

        def come_back(actor: Actor) -> None:
            consumer, producer = clients[actor.number]
            if consumer is None or producer is None:
                return
            for action, act in (
                ("publish again", lambda: producer.send(b"back")),
                ("receive again", lambda: consumer.receive(int(RETURN_TIMEOUT_S * 1000))),
            ):
                result = "ok"
                try:
                    act()  # type: ignore[no-untyped-call]
                except pulsar.PulsarException as error:
                    result = "time-out" if isinstance(error, pulsar.Timeout) else type(error).__name__
                actor.note(action, result, (time.monotonic() - killed_s) * 1000, is_expected=result == "ok")

        share.together(come_back)

    def meanwhile(self, scene: Scene, broker: StormBroker, meeting: Meeting) -> None:
        meeting.meet_main()
        broker.kill()
        meeting.meet_main()
        started_s = time.monotonic()
        broker.start_again()
        scene.counts["ms until the broker was back"] = round((time.monotonic() - started_s) * 1000)
