"""`kill -9`: the epoch of a topic is there after it, so that who lost the topic before is still known to be too late."""

from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type
from tests.support.rest import call

from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
EXCLUSIVE = pb.ProducerAccessMode.Exclusive
FENCING = pb.ProducerAccessMode.ExclusiveWithFencing
TAKE_OVERS = 5


def test_each_epoch_that_a_producer_was_told_survives_a_kill_right_after_it(broker: BrokerProcess) -> None:
    for epoch in range(TAKE_OVERS):
        client = RawClient(broker.url)
        client.connect()
        told = client.open_producer(TOPIC, producer_name="p", producer_access_mode=FENCING)
        broker.kill()
        client.close()
        assert told["topic_epoch"] == str(epoch)
        broker.start()
        assert call(f"{broker.http_url}/admin/v2/persistent/public/default/t/stats").json["topicEpoch"] == epoch


def test_after_a_kill_the_last_holder_takes_its_place_again_and_the_one_before_is_fenced(broker: BrokerProcess) -> None:
    client = RawClient(broker.url)
    client.connect()
    for producer_id, name in enumerate(("first", "second"), 1):
        epoch = client.open_producer(TOPIC, producer_id, producer_name=name, producer_access_mode=FENCING)[
            "topic_epoch"
        ]
        assert epoch == str(producer_id - 1)
    broker.kill()
    client.close()
    broker.start()
    client = RawClient(broker.url)
    client.connect()
    late = {"producer_name": "first", "epoch": 1, "topic_epoch": 0, "producer_access_mode": EXCLUSIVE}
    assert client.open_producer(TOPIC, 1, **late)["error"] == "ProducerFenced"
    back = {"producer_name": "second", "epoch": 1, "topic_epoch": 1, "producer_access_mode": EXCLUSIVE}
    assert client.open_producer(TOPIC, 2, **back)["topic_epoch"] == "1"
    assert client.open_producer(TOPIC, 3, **late)["error"] == "ProducerFenced"
    client.request(Type.CLOSE_PRODUCER, producer_id=2)
    assert client.open_producer(TOPIC, 4, producer_access_mode=EXCLUSIVE)["topic_epoch"] == "2"
    client.close()
