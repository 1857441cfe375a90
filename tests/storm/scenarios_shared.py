"""What clients keep of resources that all of them share: transactions, sinks, read leases and live connections of the console."""

import asyncio
import contextlib
import http.client
import time
from typing import Any
from urllib.parse import quote

from tests.storm.scenario import Actor, Scenario, Scene, Share
from tests.support.rest import Answer, call

from pybroker.client import connect

SHARES = "/shares"


class SharedResources(Scenario):
    """Actors open transactions and leave some of them, write batches of sinks, hold leases and watch live figures, while operators
    look at the shares and take some back, the topic is unloaded, and others publish: each gets an answer, and nothing is left."""

    name = "D-shared-resources"
    is_ours = True
    ROUNDS = 4
    # Over the share, or taken back by the operator meanwhile.
    REFUSED = (404, 409, 429, 503)

    def prepare(self, scene: Scene) -> None:
        scene.keep_everything()
        assert scene.about("PUT", scene.topic()).status == 204

    def act(self, share: Share) -> None:
        kinds = (self._transactions, self._sink, self._leases, self._live, self._publish, self._operate)
        share.together(lambda actor: kinds[actor.number % len(kinds)](actor))

    def _v3(self, actor: Actor, action: str, method: str, path: str, body: object = None) -> Answer:
        started_s = time.monotonic()
        answer = call(f"{actor.share.place.http_url}/admin/v3{path}", method, body=body)
        result = "ok" if answer.status < 300 else str(answer.status)
        took_ms = (time.monotonic() - started_s) * 1000
        actor.note(action, result, took_ms, is_expected=answer.status < 300 or answer.status in self.REFUSED)
        return answer

    def _transactions(self, actor: Actor) -> None:
        """Every second transaction is committed with a message, the others are left to their time-out."""

        async def use() -> None:
            async with connect(actor.share.place.url) as client:
                producer = await client.producer(actor.share.topic())
                for turn in range(2 * self.ROUNDS):
                    started_s = time.monotonic()
                    transaction = await client.transaction(timeout_s=5)
                    if turn % 2:
                        # An operator may have aborted it.
                        with contextlib.suppress(Exception):
                            await producer.send(b"of a transaction", transaction=transaction)
                            await transaction.commit()
                    actor.note("transaction", "ok", (time.monotonic() - started_s) * 1000, is_expected=True)

        asyncio.run(use())

    def _sink(self, actor: Actor) -> None:
        sink = f"/transactions/sinks/{actor.share.place.token}-{actor.number}"
        for batch in range(self.ROUNDS):
            opened = self._v3(actor, "open of a sink", "POST", f"{sink}/open", {"batch": batch})
            if opened.status == 200 and not opened.json["isCommitted"]:
                group = [[opened.json["most"], opened.json["least"]]]
                self._v3(actor, "commit of a sink", "POST", f"{sink}/commit", {"batch": batch, "transactions": group})

    def _leases(self, actor: Actor) -> None:
        path = f"/entries/persistent/{actor.share.namespace}/leases"
        body: dict[str, Any] = {"reader": f"r{actor.number}", "topics": [{"topic": "t", "start": [0, 0]}]}
        for _ in range(self.ROUNDS):
            self._v3(actor, "lease", "POST", path, body)
            actor.pause(0.05)
        self._v3(actor, "end of a lease", "DELETE", f"{path}/r{actor.number}")

    def _live(self, actor: Actor) -> None:
        path = f"/admin/v3/console/live/{actor.share.topic().replace('://', '/')}"
        for _ in range(self.ROUNDS):
            host = actor.share.place.http_url.removeprefix("http://")
            connection = http.client.HTTPConnection(host, timeout=actor.share.place.timeout_s)
            started_s = time.monotonic()
            try:
                connection.request("GET", path, headers={"Accept": "text/event-stream"})
                answer = connection.getresponse()
                if answer.status == 200:
                    answer.readline()
                result = "ok" if answer.status == 200 else str(answer.status)
            finally:
                connection.close()
            took_ms = (time.monotonic() - started_s) * 1000
            actor.note("live figures", result, took_ms, is_expected=answer.status in (200, 503))

    def _publish(self, actor: Actor) -> None:
        topic = actor.share.topic()
        producer = actor.produce(topic)
        for _ in range(2 * self.ROUNDS):
            if producer is not None:
                actor.send(producer, topic)
        actor.close(producer)

    def _operate(self, actor: Actor) -> None:
        for _ in range(self.ROUNDS):
            shares = self._v3(actor, "shares", "GET", SHARES)
            resource = actor.random.choice(list(shares.json))
            for each in shares.json[resource]["holders"][:1]:
                path = f"{SHARES}/{resource}?holder={quote(each['holder'])}"
                self._v3(actor, f"take back {resource}", "DELETE", path)
            actor.about("unload", "PUT", actor.share.topic(), "/unload", 404, 409)
            actor.pause()

    def judge(self, scene: Scene) -> None:
        """What clients left is taken back, and nothing is left on any account."""
        deadline_s = time.monotonic() + 20
        while True:
            shares = call(f"{scene.place.http_url}/admin/v3{SHARES}").json
            held = {name: each["holders"] for name, each in shares.items() if each["used"]}
            if not held or time.monotonic() > deadline_s:
                break
            for name, holders in held.items():
                for each in holders:
                    path = f"/admin/v3{SHARES}/{name}?holder={quote(each['holder'])}"
                    call(f"{scene.place.http_url}{path}", "DELETE")
            time.sleep(0.2)
        if held:
            scene.find(f"something is left on the account of holders: {held}")
        scene.check_kept(scene.topic())
