package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

var stringType = reflect.TypeOf(pointer(""))

func (w *walk) topicName(topic string) utils.TopicName { return *must(utils.GetTopicName(topic)) }
func (w *walk) namespaceName(namespace string) *utils.NameSpaceName {
	return must(utils.GetNamespaceName(namespace))
}

func subscriptionLife(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Properties: map[string]string{"of": "consumer"}, SubscriptionProperties: map[string]string{"of": "subscription"}, ReplicateSubscriptionState: true})
	stats := must(w.admin.Topics().GetStats(w.topicName(topic))).Subscriptions["sub"]
	w.say("shown", stats.SubType, stats.SubscriptionProperties, stats.IsDurable, stats.IsReplicated, stats.Consumers[0].Metadata, len(stats.Consumers))
	send(producer, "x")
	w.say("unsubscribe", consumer.Unsubscribe())
	w.say("left", len(must(w.admin.Subscriptions().List(w.topicName(topic)))))
	one := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	two := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	w.say("with two consumers", one.Unsubscribe())
	w.say("with force", one.UnsubscribeForce())
	two.Close()
	many := w.consumer(pulsar.ConsumerOptions{Topics: []string{topic, w.topic("u")}, SubscriptionName: "many"})
	w.say("of many topics", many.Unsubscribe())
	latest := must(w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "latest"}))
	w.say("from the latest on", leftover(latest))
}

func nonDurable(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionMode: pulsar.NonDurable})
	send(producer, "x")
	w.say("came", receiveAll(consumer, 1))
	w.say("durable", must(w.admin.Topics().GetStats(w.topicName(topic))).Subscriptions["sub"].IsDurable)
	consumer.Close()
	w.say("left", eventually(func() bool {
		return len(must(w.admin.Topics().GetStats(w.topicName(topic))).Subscriptions) == 0
	}))
	durable := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	_, err := w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub", SubscriptionMode: pulsar.NonDurable})
	w.say("the same name, durable", err)
	durable.Close()
}

func manyTopics(w *walk) {
	topics := []string{w.topic("a"), w.topic("b"), w.topic("c")}
	consumer := w.consumer(pulsar.ConsumerOptions{Topics: topics, Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond})
	for index, topic := range topics {
		send(w.producer(pulsar.ProducerOptions{Topic: topic}), fmt.Sprint(index))
	}
	w.say("came", sorted(drain(consumed{consumer})))
	w.say("last ids", len(must(consumer.GetLastMessageIDs())))
	w.say("seek by id", consumer.Seek(earliest))
	w.say("seek by time", consumer.SeekByTime(time.Now().Add(-time.Hour)))
}

func topicPattern(w *walk) {
	pattern := "persistent://public/default/" + w.prefix + "match-.*"
	send(w.producer(pulsar.ProducerOptions{Topic: w.topic("match-a")}), "a")
	send(w.producer(pulsar.ProducerOptions{Topic: w.topic("other")}), "other")
	consumer := w.consumer(pulsar.ConsumerOptions{TopicsPattern: pattern, AutoDiscoveryPeriod: 200 * time.Millisecond})
	w.say("at first", receiveAll(consumer, 1))
	send(w.producer(pulsar.ProducerOptions{Topic: w.topic("match-b")}), "b")
	w.say("of a new topic", receiveAll(consumer, 1))
	check(w.admin.Topics().Create(w.topicName(w.topic("match-p")), 2))
	producer := w.producer(pulsar.ProducerOptions{Topic: w.topic("match-p")})
	send(producer, "p")
	w.say("of a new partitioned topic", receiveAll(consumer, 1))
	w.say("nothing else", leftover(consumer))
	w.say("unsubscribe", consumer.Unsubscribe())
	_, err := w.client.Subscribe(pulsar.ConsumerOptions{TopicsPattern: "persistent://public/default/" + w.prefix + "none-.*", SubscriptionName: "sub"})
	w.say("matches nothing yet", err)
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{TopicsPattern: "persistent://public/" + w.prefix + "missing/.*", SubscriptionName: "sub"})
	w.say("missing namespace", err)
}

func readers(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := send(producer, "a", "b", "c")
	open := func(step string, start pulsar.MessageID, inclusive bool) pulsar.Reader {
		reader := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: start, StartMessageIDInclusive: inclusive}))
		w.say(step, reader.HasNext(), drain(read{reader}), reader.HasNext())
		return reader
	}
	open("earliest", pulsar.EarliestMessageID(), false).Close()
	open("latest", pulsar.LatestMessageID(), false).Close()
	open("latest, inclusively", pulsar.LatestMessageID(), true).Close()
	open("second", ids[1], false).Close()
	open("second, inclusively", ids[1], true).Close()
	open("from the bytes of an id", must(pulsar.DeserializeMessageID(ids[0].Serialize())), false).Close()
	open("behind the last", pulsar.NewMessageID(ids[2].LedgerID(), 100, -1, 0), false).Close()
	reader := open("last one", ids[2], false)
	w.say("last message id", must(reader.GetLastMessageID()).EntryID())
	send(producer, "d")
	w.say("a new one", reader.HasNext(), drain(read{reader}))
	w.say("seek", reader.Seek(ids[0]), drain(read{reader}))
	reader.Close()
	reader = open("from the start", pulsar.EarliestMessageID(), false)
	w.say("seek by time", reader.SeekByTime(time.UnixMilli(1)), reader.HasNext(), len(drain(read{reader})))
	reader.Close()
	named := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID(), Name: "named", SubscriptionName: "of-reader", SubscriptionRolePrefix: "prefix"}))
	stats := must(w.admin.Topics().GetStats(w.topicName(topic))).Subscriptions
	w.say("its subscription", stats["of-reader"].IsDurable, len(stats["of-reader"].Consumers))
	named.Close()
	batched := w.producer(pulsar.ProducerOptions{Topic: w.topic("batched"), BatchingMaxPublishDelay: time.Minute})
	sendTogether(batched, keyed("a", "b", "c")...)
	topic = w.topic("batched")
	reader = must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
	receivedFirst := must(reader.Next(within(patience)))
	open("behind the first of a batch", receivedFirst.ID(), false)
	open("at the first of a batch", receivedFirst.ID(), true)
	_, err := w.client.CreateReader(pulsar.ReaderOptions{Topic: topic})
	w.say("no start", err)
	check(w.admin.Topics().Create(w.topicName(w.topic("p")), 2))
	send(w.producer(pulsar.ProducerOptions{Topic: w.topic("p")}), "x", "y")
	reader, err = w.client.CreateReader(pulsar.ReaderOptions{Topic: w.topic("p"), StartMessageID: pulsar.EarliestMessageID()})
	if err == nil {
		w.say("of partitions", sorted(drain(read{reader})))
	} else {
		w.say("of partitions", err)
	}
}

func tableView(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewStringSchema(nil)})
	put := func(key string, value any) {
		sendMessage(producer, pulsar.ProducerMessage{Key: key, Value: value})
	}
	put("a", "1")
	put("b", "2")
	put("a", "3")
	view := must(w.client.CreateTableView(pulsar.TableViewOptions{Topic: topic, Schema: pulsar.NewStringSchema(nil), SchemaValueType: stringType}))
	w.say("size", view.Size(), view.ContainsKey("a"), view.ContainsKey("z"), sorted(view.Keys()))
	w.say("value", *view.Get("a").(*string), len(view.Entries()))
	seen := make(chan string, 10)
	check(view.ForEachAndListen(func(key string, value any) error {
		seen <- key + "=" + *value.(*string)
		return nil
	}))
	w.say("each", sorted([]string{<-seen, <-seen}))
	put("c", "4")
	w.say("listened", <-seen)
	view.Close()
}

func compacted(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	name := w.topicName(topic)
	for _, text := range []string{"a1", "b1", "a2", "c1", "b2"} {
		sendMessage(producer, pulsar.ProducerMessage{Key: text[:1], Payload: []byte(text)})
	}
	sendMessage(producer, pulsar.ProducerMessage{Key: "c"})
	w.say("never run", must(w.admin.Topics().CompactStatus(name)).Status)
	w.say("compact", w.admin.Topics().Compact(name))
	w.say("done", eventually(func() bool { return must(w.admin.Topics().CompactStatus(name)).Status == utils.SUCCESS }))
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, ReadCompacted: true})
	w.say("consumed", drain(consumed{consumer}))
	reader := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, ReadCompacted: true, StartMessageID: pulsar.EarliestMessageID()}))
	w.say("read", drain(read{reader}))
	w.say("not compacted", drain(consumed{w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "all"})}))
	_, err := w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "shared", Type: pulsar.Shared, ReadCompacted: true})
	w.say("compacted on Shared", err)
}

func nonPersistent(w *walk) {
	topic := strings.Replace(w.topic("t"), "persistent", "non-persistent", 1)
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	send(producer, "lost")
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	w.say("came", eventually(func() bool { // what is sent before the consumer asks for it is lost
		id := send(producer, "x")[0]
		message, err := consumer.Receive(within(silence))
		return err == nil && id.EntryID() == 0 && consumer.Ack(message) == nil
	}))
	w.say("seek", consumer.SeekByTime(time.Now()))
	w.say("unsubscribe", consumer.Unsubscribe())
	_, err := w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.LatestMessageID()})
	w.say("reader", err)
}

func delayedDelivery(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	started := time.Now()
	sendMessage(producer, pulsar.ProducerMessage{Payload: []byte("after"), DeliverAfter: time.Second})
	sendMessage(producer, pulsar.ProducerMessage{Payload: []byte("at"), DeliverAt: started.Add(3 * time.Second)})
	sendMessage(producer, pulsar.ProducerMessage{Payload: []byte("past"), DeliverAt: started.Add(-time.Second)})
	send(producer, "now")
	for range 4 {
		message := receive(consumer)
		w.say("came", string(message.Payload()))
		check(consumer.Ack(message))
	}
	exclusive := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "exclusive"})
	w.say("in their order on Exclusive", drain(consumed{exclusive}))
}
