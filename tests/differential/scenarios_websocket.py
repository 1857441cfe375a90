"""Sessions of the WebSocket API, with a client library that knows nothing of Pulsar."""

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.differential.harness import QUIET_MS, RECEIVE_TIMEOUT_MS, Run, scenario, secured_scenario
from tests.differential.scenarios_rest import V2
from tests.differential.scenarios_topics import with_namespace
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pybroker.websocket.json_forms import decoded_id

MALFORMED = (
    "no JSON",
    "",
    "[]",
    "null",
    "{}",
    '{"payload": "!!", "context": "c"}',
    '{"payload": "YQ"}',
    '{"payload": ""}',
    '{"payload": 5}',
    '{"payload": "YQ==", "eventTime": "yesterday"}',
    '{"payload": "YQ==", "properties": [1]}',
    '{"payload": "YQ==", "properties": {"a": 5}, "context": 5, "unknown": {}}',
    '{"payload": "YQ==", "deliverAt": "5"}',
)
PRODUCER_QUERIES = (
    "compressionType=x",
    "hashingScheme=x",
    "messageRoutingMode=x",
    "sendTimeoutMillis=x",
    "sendTimeoutMillis=-1",
    "initialSequenceId=x",
    "producerName=",
    "encryptionKeys=a",
    "batchingMaxMessages=x",
    "batchingEnabled=true&batchingMaxMessages=x",
    "batchingEnabled=true&maxPendingMessages=-1",
    "unknown=x",
)
CONSUMER_QUERIES = (
    "subscriptionType=x",
    "subscriptionMode=x",
    "subscriptionInitialPosition=x",
    "ackTimeoutMillis=10",
    "receiverQueueSize=-1",
    "receiverQueueSize=0",
    "priorityLevel=-1",
    "maxRedeliverCount=0",
    "deadLetterTopic=x",
    "negativeAckRedeliveryDelay=-1",
    "consumerName=",
    "pullMode=x",
)


class Session:
    """One session; `None` as its connection if it was refused."""

    def __init__(self, run: Run, connection: ClientConnection | None) -> None:
        self.run = run
        self.connection = connection

    def send(self, value: object) -> None:
        assert self.connection is not None
        self.connection.send(value if isinstance(value, str) else json.dumps(value))

    def receive(self, timeout_ms: float = RECEIVE_TIMEOUT_MS) -> Any:
        assert self.connection is not None
        try:
            return json.loads(self.connection.recv(timeout_ms / 1000))
        except TimeoutError:
            return None
        except ConnectionClosed as closed:
            return {"closed": closed.rcvd.code if closed.rcvd is not None else None}

    def observed(self, timeout_ms: float = RECEIVE_TIMEOUT_MS) -> Any:
        """The next text without times, words and addresses; ids by position."""
        found = self.receive(timeout_ms)
        if isinstance(found, dict):
            found.pop("publishTime", None)
            if found.pop("errorMsg", None) is not None:
                found["errorMsg"] = "<text>"
            if "messageId" in found:
                decoded = decoded_id(found["messageId"])
                found["messageId"] = [
                    self.run.normaliser.position(decoded.ledger_id, decoded.entry_id),
                    *decoded[2:5],
                ]
        return found

    def step(self, label: str, timeout_ms: float = RECEIVE_TIMEOUT_MS) -> None:
        self.run.step(label, self.observed(timeout_ms))


@contextlib.contextmanager
def opened(run: Run, label: str, path: str, **headers: str) -> Iterator[Session]:
    """Open a session, and record whether it was opened, or the status of the refusal."""
    assert run.broker.http_url is not None
    url = f"{run.broker.http_url.replace('http', 'ws', 1)}/ws/{path}"
    try:
        connection = connect(url, compression=None, additional_headers=headers, max_size=None)
    except InvalidStatus as error:
        run.step(label, error.response.status_code)
        yield Session(run, None)
        return
    run.step(label, "open")
    with connection:
        yield Session(run, connection)


def message(payload: bytes, **members: object) -> dict[str, object]:
    return {"payload": base64.b64encode(payload).decode(), **members}


def filled(run: Run, path: str, count: int) -> None:
    with opened(run, "fill", f"v2/producer/{path}") as producer:
        for number in range(count):
            producer.send(message(b"%d" % number))
            producer.step(f"fill {number}")


@scenario
def websocket_producer(run: Run) -> None:
    """Answers to messages, and the messages that a consumer of the binary protocol receives."""
    path = f"persistent/{with_namespace(run)}/t"
    consumer = run.client().subscribe(f"persistent://{path.partition('/')[2]}", "s")
    with opened(run, "open", f"v2/producer/{path}?producerName=p") as producer:
        producer.send(
            message(b"all", context="1", key="k", properties={"a": "b"}, eventTime="2020-01-01T01:00:00.5+01:00")
        )
        producer.step("all members")
        producer.send(message(b"clusters", replicationClusters=["standalone"]))
        producer.step("clusters")
        for text in MALFORMED:
            producer.send(text)
            producer.step(f"text {text}")
        for received in run.receive(consumer, 2):
            run.step("received", run.describe(received))
        with opened(run, "same name", f"v2/producer/{path}?producerName=p"):
            pass
        run.http("POST", f"{V2}/{path}/terminate", ..., "")
        producer.send(message(b"late", context="2"))
        producer.step("after the end")
    with opened(run, "terminated topic", f"v2/producer/{path}"):
        pass


@scenario
def websocket_refusals(run: Run) -> None:
    """Statuses of sessions that are not opened."""
    path = f"persistent/{with_namespace(run)}/t"
    for query in PRODUCER_QUERIES:
        with opened(run, f"producer {query}", f"v2/producer/{path}?{query}"):
            pass
    for query in CONSUMER_QUERIES:
        with opened(run, f"consumer {query}", f"v2/consumer/{path}/s?{query}"):
            pass
    for query in ("messageId=x!", "messageId=YQ%3D%3D", "receiverQueueSize=-1", "messageId=earliest"):
        with opened(run, f"reader {query}", f"v2/reader/{path}?{query}"):
            pass
    missing = f"persistent/{run.tenant('missing')}/ns/t"
    for each in (f"v2/producer/{missing}", f"v2/consumer/{missing}/s", f"v2/reader/{missing}"):
        with opened(run, f"{each.split('/')[1]} of missing namespace", each):
            pass
    for label, each in (
        ("without subscription", f"v2/consumer/{path}"),
        ("with empty subscription", f"v2/consumer/{path}/"),
        ("of unknown kind", f"v2/other/{path}"),
        ("without version", f"producer/{path}"),
    ):
        with opened(run, f"path {label}", each):
            pass
    run.rest_status("no handshake", "GET", f"/ws/v2/producer/{path}")
    with opened(run, "first exclusive", f"v2/consumer/{path}/e"), opened(run, "second", f"v2/consumer/{path}/e"):
        pass


@scenario
def websocket_consumer(run: Run) -> None:
    """Delivery, acknowledgements, their order with the queue, negative acknowledgements, end of topic, unsubscribing."""
    path = f"persistent/{with_namespace(run)}/t"
    options = "subscriptionType=Shared&receiverQueueSize=2&negativeAckRedeliveryDelay=100"
    with opened(run, "open", f"v2/consumer/{path}/s?{options}") as consumer:
        filled(run, path, 4)
        first, second = consumer.receive(), consumer.receive()
        consumer.step("beyond the queue", QUIET_MS)
        consumer.send({"messageId": first["messageId"]})
        consumer.step("after an acknowledgement")
        consumer.send({"type": "negativeAcknowledge", "messageId": second["messageId"]})
        consumer.step("after a negative acknowledgement")
        consumer.send({"type": "isEndOfTopic"})
        consumer.step("end of topic")
        consumer.send({"type": "unsubscribe"})
        consumer.step("unsubscribe", QUIET_MS)
        address = f"{V2}/{path}/subscriptions"
        run.wait_until(
            lambda: json.loads(run.http("GET", address, ..., "")[2]) == []
        )  # the service does not wait for it
        run.rest("subscriptions", "GET", address)


@scenario
def websocket_pull_mode(run: Run) -> None:
    """Messages for permits."""
    path = f"persistent/{with_namespace(run)}/t"
    with opened(run, "open", f"v2/consumer/{path}/s?pullMode=true") as consumer:
        filled(run, path, 3)
        consumer.step("without a permit", QUIET_MS)
        consumer.send({"type": "permit", "permitMessages": 2})
        for _ in range(2):
            consumer.step("two permits")
        consumer.step("used up", QUIET_MS)
        consumer.send({"type": "permit", "permitMessages": 1})
        consumer.step("one more")


@scenario
def websocket_several_topics(run: Run) -> None:
    """Consumers of several topics, and of a pattern; batches and partitions."""
    namespace = with_namespace(run)
    run.http("PUT", f"{V2}/persistent/{namespace}/p/partitions", 2, "application/json")
    topics = f"persistent://{namespace}/a,persistent://{namespace}/p"
    with opened(run, "topics", f"v3/consumer/s?topics={topics}") as consumer:
        filled(run, f"persistent/{namespace}/a", 1)
        consumer.step("of a")
        with opened(run, "batching", f"v2/producer/persistent/{namespace}/p?batchingEnabled=true") as producer:
            producer.send(message(b"key", key="k"))
            producer.step("batch")
        consumer.step("of p")
    pattern = f"persistent://{namespace}/a.*"
    with opened(
        run, "pattern", f"v3/consumer/s2?topicsPattern={pattern}&subscriptionInitialPosition=Earliest"
    ) as consumer:
        consumer.step("of the pattern")
    for query in ("", "?topics=a&topicsPattern=b"):
        with opened(run, f"v3 {query}", f"v3/consumer/s{query}"):
            pass


@scenario
def websocket_reader(run: Run) -> None:
    """Where a reader begins, and how its acknowledgements let it go on."""
    path = f"persistent/{with_namespace(run)}/t"
    filled(run, path, 4)
    with opened(run, "from the first on", f"v2/reader/{path}?messageId=earliest&receiverQueueSize=2") as reader:
        first = reader.receive()
        reader.step("second")
        reader.step("beyond the queue", QUIET_MS)
        reader.send({"messageId": first["messageId"]})
        reader.step("after an acknowledgement")
    start = first["messageId"].replace("+", "%2B").replace("=", "%3D")
    with opened(run, "after the first", f"v2/reader/{path}?messageId={start}") as reader:
        for _ in range(3):
            reader.step("message")
        reader.send({"type": "isEndOfTopic"})
        reader.step("end of topic")
    with opened(run, "latest", f"v2/reader/{path}") as reader:
        reader.step("nothing", QUIET_MS)


@secured_scenario
def websocket_rights(run: Run) -> None:
    """Tokens in the header and in the query, wrong ones, and permissions."""
    namespace = with_namespace(run)
    run.http("POST", f"{V2}/namespaces/{namespace}/permissions/writer", ["produce"], "application/json")
    path = f"persistent/{namespace}/t"
    writer = run.token_of("writer")
    with opened(run, "header", f"v2/producer/{path}", Authorization=f"Bearer {writer}"):
        pass
    with opened(run, "query", f"v2/producer/{path}?token={writer}"):
        pass
    with opened(run, "wrong token", f"v2/producer/{path}?token=x.y.z"):
        pass
    with opened(run, "missing permission", f"v2/consumer/{path}/s?token={writer}"):
        pass
