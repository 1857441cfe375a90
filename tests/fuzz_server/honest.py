"""An official client beside the hostile ones: it publishes and receives all the time, and notes how long the slowest took."""

import threading
import time

import pulsar

TOPIC = "persistent://honest/ns/t"
INTERVAL_S = 0.02
MOST_S = 20.0


class HonestClient:
    """Owned by a run; `stop` must be called."""

    def __init__(self, url: str, token: str = "") -> None:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        authentication = pulsar.AuthenticationToken(token) if token else None
        self._client = pulsar.Client(
            url, authentication=authentication, operation_timeout_seconds=int(MOST_S), logger=logger
        )
        self._consumer = self._client.subscribe(TOPIC, "honest")
        self._producer = self._client.create_producer(TOPIC, send_timeout_millis=int(MOST_S * 1000))
        self._is_over = threading.Event()
        self.messages = 0
        self.slowest_ms = 0.0
        self.faults: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            started_s = time.monotonic()
            try:
                body = str(self.messages).encode()
                self._producer.send(body)
                message = self._consumer.receive(int(MOST_S * 1000))
                self._consumer.acknowledge(message)
            except pulsar.PulsarException as error:
                self.faults.append(f"the honest client failed after {self.messages} messages: {error!r}")
                return
            if message.data() != body:
                self.faults.append(f"the honest client received {message.data()!r} in place of {body!r}")
            self.slowest_ms = max(self.slowest_ms, (time.monotonic() - started_s) * 1000)
            self.messages += 1

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()
