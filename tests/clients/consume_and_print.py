"""A consumer in a process of its own, to be killed: prints `key number` of each message, and acknowledges the first ones."""

import sys

import pulsar


def main(url: str, topic: str, name: str, ack_count: int) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name=name)
    print("ready", flush=True)
    for count in range(1_000_000):
        message = consumer.receive()
        print(message.partition_key(), int(message.data()), flush=True)
        if count < ack_count:
            consumer.acknowledge(message)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
