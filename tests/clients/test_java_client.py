"""What only the official Java client has: automatic schemas, ranges of hashes, fencing producers, watchers of patterns.

Needs Java 17 and the class path that the `baseline` script resolved (`tests/support/java.py`); without them these tests
fail. `JavaClient.java` makes all checks in one run and says a line of each.
"""

import pathlib
import subprocess

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.java import java_command

pytestmark = [pytest.mark.long, pytest.mark.java]

PROGRAM = pathlib.Path(__file__).with_name("JavaClient.java")
TIMEOUT_S = 240
# The name of each check, and what it says of the broker.
CHECKS = {
    "auto_produce_avro": "a producer without a schema takes the topic's Avro schema and refuses other bytes",
    "auto_produce_json": "a producer without a schema takes the topic's JSON schema and refuses other bytes",
    "auto_consume_two_versions": "a consumer without a schema reads each message by the version it was written with",
    "protobuf_native": "a schema of Protobuf descriptors is registered, and read with and without knowing it",
    "key_value_separated": "a schema of key and value in two places is read with and without knowing it",
    "key_value_inline": "a schema of key and value in one place is read with and without knowing it",
    "readers_by_key_hash_range": "readers of two halves of the hashes see each key once",
    "compacted_table_view": "a compacted topic is read by a consumer and a table view with one value for each key",
    "key_shared_dead_letter": "a Key_Shared consumer gives a message up to the dead-letter topic and its key goes on",
    "chunks_of_chosen_size": "a message in chunks of the size that the producer chose is read as one",
    "producer_waits_for_exclusive": "a waiting producer gets the topic when the exclusive one closes",
    "exclusive_producer_with_fencing": "a fencing producer takes the topic and the former one is told so",
    "pattern_watch": "a consumer of a pattern is told of a new topic at once",
    "seek_inside_of_batches": "a message in a batch is a place to seek to, before it and behind it",
    "chunk_ids": "a message in chunks is a place to start from, before it and behind it",
    "reader_asks_for_more": "a reader knows whether there is more, wherever it was moved to",
    "retry_letters": "a message goes round by the retry topic and ends in the dead-letter topic",
    "encrypted": "encrypted messages, whole and in chunks, are read with the key, dropped or taken as they are",
    "unloaded_under_load": "unloads lose nothing and keep the order of what is being sent",
    "new_partitions": "a consumer of the latest gets the first messages of new partitions",
    "lookup_over_http": "topics, patterns and schemas are looked up by HTTP",
    "odd_names": "topics and subscriptions of odd names are read and administered",
    "admin_of_namespaces": "the admin client's bare texts and bundles of topics are understood, and bad documents refused",
}


@pytest.fixture(scope="module")
def outcomes(broker: BrokerProcess) -> dict[str, str]:
    """What the one run said of each check."""
    prefix = "persistent://public/default/java-"
    command = java_command(PROGRAM, broker.url, broker.http_url, prefix)
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    lines = [line.partition(" ") for line in run.stdout.splitlines()]
    return {name: outcome for name, _, outcome in lines if name in CHECKS}


@pytest.mark.parametrize("check", CHECKS)
def test_the_java_client_finds_that(check: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(check) == "ok", CHECKS[check]
