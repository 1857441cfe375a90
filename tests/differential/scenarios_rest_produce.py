"""Messages over REST."""

import json
from typing import Any

from tests.differential.harness import Run, scenario
from tests.differential.scenarios_rest import V2
from tests.differential.scenarios_topics import with_namespace

STRING = json.dumps({"name": "", "schema": "", "type": "STRING", "properties": {}})
INTEGER = json.dumps({"name": "", "schema": "", "type": "INT32", "properties": {}})


def produce(run: Run, label: str, path: str, *messages: dict[str, Any], **others: Any) -> None:
    """Record the answer without the ids of ledgers and without the texts of errors."""
    body = {"messages": list(messages), **others}
    status, _, data = run.http("POST", f"/topics/persistent/{path}", body, "application/json")
    answer = json.loads(data)
    for result in answer.get("messagePublishResults", []):
        ledger_id, colon, rest = result["messageId"].partition(":")
        result["messageId"] = f"<ledger>:{rest}" if colon else ledger_id
        result.pop("errorMsg", None)
    run.step(label, {"status": status, "body": answer})


def status_of(run: Run, label: str, path: str, body: object) -> None:
    run.rest_status(label, "POST", f"/topics/persistent/{path}", body)


@scenario
def rest_produce(run: Run) -> None:
    """Messages of a topic and of a partitioned one: what is answered, and what is stored."""
    namespace = with_namespace(run)
    run.rest("create", "PUT", f"{V2}/persistent/{namespace}/t")
    message = {"payload": "hello", "key": "k", "properties": {"a": "b"}, "eventTime": 123456, "sequenceId": 7}
    produce(run, "one", f"{namespace}/t", message)
    produce(run, "more", f"{namespace}/t", {"payload": "a"}, {"payload": "b"}, producerName="mine")
    produce(run, "string", f"{namespace}/t", {"payload": "s"}, valueSchema=STRING)
    produce(run, "none", f"{namespace}/t")
    for number in (1, 2):
        path = f"{V2}/persistent/{namespace}/t/examinemessage?initialPosition=earliest&messagePosition={number}"
        run.rest(f"message {number}", "GET", path)
    run.rest("partitioned", "PUT", f"{V2}/persistent/{namespace}/p/partitions", 2)
    produce(run, "by turns", f"{namespace}/p", {"payload": "a"}, {"payload": "b"}, {"payload": "c"})
    produce(run, "one partition", f"{namespace}/p/partitions/1", {"payload": "a"})
    produce(run, "partition by name", f"{namespace}/p-partition-0", {"payload": "a"})


@scenario
def rest_produce_schemas(run: Run) -> None:
    """Schemas of messages over REST: registered, and shown."""
    namespace = with_namespace(run)
    for topic in ("i", "kv"):
        run.rest(f"create {topic}", "PUT", f"{V2}/persistent/{namespace}/{topic}")
    produce(run, "integer", f"{namespace}/i", {"payload": "17"}, valueSchema=INTEGER)
    produce(run, "by version", f"{namespace}/i", {"payload": "18"}, schemaVersion=0)
    produce(run, "key and value", f"{namespace}/kv", {"payload": "v", "key": "k"}, keySchema=STRING, valueSchema=STRING)
    run.rest("schema of i", "GET", f"{V2}/schemas/{namespace}/i/schema")
    run.rest("message", "GET", f"{V2}/persistent/{namespace}/kv/examinemessage?initialPosition=earliest")


@scenario
def rest_produce_refused(run: Run) -> None:
    """What is refused, as a whole or message by message."""
    namespace = with_namespace(run)
    run.rest("create", "PUT", f"{V2}/persistent/{namespace}/t")
    status_of(run, "missing topic", f"{namespace}/missing", {"messages": [{"payload": "a"}]})
    status_of(run, "missing namespace", f"{namespace}-no/t", {"messages": [{"payload": "a"}]})
    status_of(run, "partition of none", f"{namespace}/t/partitions/0", {"messages": [{"payload": "a"}]})
    status_of(run, "no messages", f"{namespace}/t", {})
    status_of(run, "no payload", f"{namespace}/t", {"messages": [{}]})
    status_of(run, "bad time", f"{namespace}/t", {"messages": [{"payload": "a", "eventTime": "x"}]})
    status_of(run, "bad schema", f"{namespace}/t", {"messages": [{"payload": "a"}], "valueSchema": "no json"})
    produce(run, "before the end", f"{namespace}/t", {"payload": "a"})
    run.rest("terminate", "POST", f"{V2}/persistent/{namespace}/t/terminate")
    produce(run, "after the end", f"{namespace}/t", {"payload": "a"}, {"payload": "b"})
