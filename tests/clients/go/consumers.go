package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func messageFields(w *walk) {
	producer := w.producer(pulsar.ProducerOptions{Topic: w.topic("t"), Name: "named", DisableBatching: true})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: w.topic("t"), Name: "reader of it"})
	before := time.Now().Add(-time.Second)
	id := sendMessage(producer, pulsar.ProducerMessage{
		Payload: []byte("payload"), Key: "key", OrderingKey: "order", Properties: map[string]string{"a": "b", "": "", "ü": "✓"},
		EventTime: time.UnixMilli(1234567890123), SequenceID: pointer(int64(77)), DisableReplication: true,
	})
	message := receive(consumer)
	w.say("fields", string(message.Payload()), message.Key(), message.OrderingKey(), message.Properties(), message.EventTime().UnixMilli(), message.ProducerName())
	w.say("topic", strings.TrimPrefix(message.Topic(), "persistent://public/default/"+w.prefix))
	w.say("published now", message.PublishTime().After(before), message.RedeliveryCount(), message.IsReplicated(), message.Index() == nil, message.BrokerPublishTime() == nil)
	w.say("id", message.ID().EntryID() == id.EntryID(), message.ID().LedgerID() == id.LedgerID(), message.ID().BatchIdx(), message.ID().PartitionIdx())
	again := must(pulsar.DeserializeMessageID(message.ID().Serialize()))
	w.say("serialized", again.String() == message.ID().String())
	w.say("acknowledged by the id from its bytes", consumer.AckID(again))
	w.say("names", consumer.Name(), consumer.Subscription())
}

func exclusiveConsumers(w *walk) {
	topic := w.topic("t")
	first := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	_, err := w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub"})
	w.say("a second one", err)
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub", Type: pulsar.Shared})
	w.say("of another type", err)
	first.Close()
	second, err := w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub", Type: pulsar.Shared, Name: "same"})
	w.say("after close, of another type", err)
	third, err := w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub", Type: pulsar.Shared, Name: "same"})
	w.say("same name", err)
	w.say("two on it: unsubscribe", second.Unsubscribe())
	third.Close()
	w.say("one on it: unsubscribe", second.Unsubscribe())
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic})
	w.say("no subscription name", err)
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{SubscriptionName: "sub"})
	w.say("no topic", err)
	_, err = second.Receive(within(silence))
	w.say("receive after it", err)
}

func zeroQueueAndShared(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	zero := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, EnableZeroQueueConsumer: true})
	scaled := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, ReceiverQueueSize: 10, EnableAutoScaledReceiverQueueSize: true})
	send(producer, "a", "b", "c", "d")
	w.say("all but what nobody asked for", len(drain(consumed{scaled})))
	scaled.Close()
	w.say("given back", len(receiveAll(zero, 4)))
	w.say("last id", must(zero.GetLastMessageIDs())[0].EntryID())
	w.say("seek", zero.Seek(earliest))
}

func keyShared(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	one := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared})
	two := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared})
	keys := []string{}
	for index := range 40 {
		keys = append(keys, fmt.Sprint("k", index%10, "-"))
	}
	sendTogether(producer, keyed(keys...)...)
	ofOne, ofTwo := drain(consumed{one}), drain(consumed{two})
	owner := map[string]bool{}
	for _, payload := range ofOne {
		owner[payload[:2]] = true
	}
	w.say("all came", len(ofOne)+len(ofTwo), len(ofOne)%4, len(ofTwo)%4)
	shared := 0
	for _, payload := range ofTwo {
		if owner[payload[:2]] {
			shared++
		}
	}
	w.say("keys of both", shared)
	sticky := func(from, to int) (pulsar.Consumer, error) {
		policy := must(pulsar.NewKeySharedPolicySticky([]int{from, to}))
		return w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sticky", Type: pulsar.KeyShared, KeySharedPolicy: policy})
	}
	low, err := sticky(0, 30000)
	w.say("low hashes", err)
	_, err = sticky(20000, 40000)
	w.say("overlapping", err)
	high, err := sticky(30001, 65535)
	w.say("high hashes", err)
	sendTogether(producer, keyed(keys...)...)
	w.say("by hash", len(drain(consumed{low})), len(drain(consumed{high})))
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sticky", Type: pulsar.KeyShared})
	w.say("of another mode", err)
	loose := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "loose", Type: pulsar.KeyShared, KeySharedPolicy: &pulsar.KeySharedPolicy{AllowOutOfOrderDelivery: true}})
	w.say("out of order allowed", len(drain(consumed{loose})))
}

// Tells which consumer is active.
type listener struct {
	w    *walk
	name string
}

func (l listener) BecameActive(_ pulsar.Consumer, _ string, partition int32) {
	l.w.say(l.name+" became active", partition)
}

func (l listener) BecameInactive(_ pulsar.Consumer, _ string, partition int32) {
	l.w.say(l.name+" became inactive", partition)
}

func eventListener(w *walk) {
	const failover = 1300 * time.Millisecond // the broker waits a second before it tells
	topic := w.topic("t")
	first := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "b", EventListener: listener{w, "b"}})
	time.Sleep(failover)
	second := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "a", EventListener: listener{w, "a"}})
	time.Sleep(failover)
	first.Close()
	time.Sleep(failover)
	second.Close()
	name := w.topicName(w.topic("p"))
	check(w.admin.Topics().Create(name, 2))
	first = w.consumer(pulsar.ConsumerOptions{Topic: w.topic("p") + "-partition-1", Type: pulsar.Failover, Name: "p", EventListener: listener{w, "p"}})
	time.Sleep(failover)
	first.Close()
}

func acknowledgements(w *walk) {
	for _, withResponse := range []bool{false, true} {
		name := fmt.Sprint("with response ", withResponse, ": ")
		topic := w.topic(fmt.Sprint("t", withResponse))
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, BatchingMaxPublishDelay: time.Minute})
		options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, AckWithResponse: withResponse, EnableBatchIndexAcknowledgment: true,
			AckGroupingOptions: &pulsar.AckGroupingOptions{MaxSize: 10, MaxTime: 50 * time.Millisecond}}
		consumer := w.consumer(options)
		sendTogether(producer, keyed("a", "b", "c", "d")...)
		sendTogether(producer, keyed("e", "f", "g", "h")...)
		messages := []pulsar.Message{}
		for range 8 {
			messages = append(messages, receive(consumer))
		}
		w.say(name+"one of a batch", consumer.Ack(messages[1]))
		w.say(name+"by id", consumer.AckID(messages[2].ID()))
		w.say(name+"list of ids", consumer.AckIDList([]pulsar.MessageID{messages[4].ID(), messages[5].ID(), messages[6].ID()}))
		w.say(name+"again", consumer.AckID(messages[4].ID()))
		w.say(name+"cumulatively on Shared", consumer.AckCumulative(messages[3]))
		made := pulsar.NewMessageID(messages[7].ID().LedgerID(), messages[7].ID().EntryID(), 3, 0)
		w.say(name+"an id that was made", consumer.AckID(made))
		time.Sleep(200 * time.Millisecond)
		consumer.Close()
		consumer = w.consumer(options)
		w.say(name+"left", drain(consumed{consumer}))
		exclusive := options
		exclusive.Type, exclusive.SubscriptionName = pulsar.Exclusive, "exclusive"
		consumer = w.consumer(exclusive)
		for range 6 {
			messages[0] = receive(consumer)
		}
		w.say(name+"cumulatively", consumer.AckIDCumulative(messages[0].ID()))
		time.Sleep(200 * time.Millisecond)
		consumer.Close()
		w.say(name+"left", drain(consumed{w.consumer(exclusive)}))
	}
}

func negativeAcks(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond}
	for _, name := range []string{"fixed delay", "backoff", "by id"} {
		if name == "backoff" {
			options = pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, NackBackoffPolicy: quick{}}
		}
		consumer := w.consumer(options)
		send(producer, name)
		for range 2 {
			message := receive(consumer)
			w.say(name, string(message.Payload()), message.RedeliveryCount())
			if name == "by id" {
				consumer.NackID(message.ID())
			} else {
				consumer.Nack(message)
			}
		}
		message := receive(consumer)
		w.say(name, string(message.Payload()), message.RedeliveryCount(), consumer.Ack(message))
		time.Sleep(200 * time.Millisecond)
		consumer.Close()
	}
}

type quick struct{}

func (quick) Next(count uint32) time.Duration { return time.Duration(count+1) * 50 * time.Millisecond }

func deadLetters(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 50 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: w.topic("dead"), DeadLetterTopicProducerName: "undertaker", InitialSubscriptionName: "kept",
			ProducerOptions: pulsar.ProducerOptions{Properties: map[string]string{"p": "q"}}}})
	sendMessage(producer, pulsar.ProducerMessage{Payload: []byte("x"), Key: "k", Properties: map[string]string{"a": "b"}, EventTime: time.UnixMilli(5)})
	for range 2 {
		message := receive(consumer)
		w.say("delivered", string(message.Payload()), message.RedeliveryCount())
		consumer.Nack(message)
	}
	dead := w.consumer(pulsar.ConsumerOptions{Topic: w.topic("dead"), SubscriptionName: "kept"})
	message := receive(dead)
	properties := message.Properties()
	w.say("dead", string(message.Payload()), message.Key(), properties["a"], len(properties), strings.HasPrefix(message.ProducerName(), "undertaker"))
	w.say("not delivered any more", leftover(consumer))
	w.say("subscriptions", sorted(must(w.admin.Subscriptions().List(w.topicName(w.topic("dead"))))))
	standard := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "other", Type: pulsar.Shared, RetryEnable: true, NackRedeliveryDelay: 50 * time.Millisecond})
	for message := receive(standard); ; message = receive(standard) {
		standard.ReconsumeLater(message, time.Millisecond)
		if message.Properties()["RECONSUMETIMES"] == "16" {
			break
		}
	}
	w.say("standard name", receiveAll(w.consumer(pulsar.ConsumerOptions{Topic: topic + "-other-DLQ"}), 1))
}

func retryLetters(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, RetryEnable: true, NackRedeliveryDelay: 50 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: w.topic("dead"), RetryLetterTopic: w.topic("retry")}}
	consumer := w.consumer(options)
	send(producer, "x")
	for count := range 3 {
		message := receive(consumer)
		w.say("received", string(message.Payload()), strings.TrimPrefix(message.Topic(), topic), message.Properties()["RECONSUMETIMES"], message.Properties()["DELAY_TIME"], message.Properties()["n"])
		consumer.ReconsumeLaterWithCustomProperties(message, map[string]string{"n": fmt.Sprint(count)}, 100*time.Millisecond)
	}
	w.say("dead", receiveAll(w.consumer(pulsar.ConsumerOptions{Topic: w.topic("dead")}), 1))
	w.say("nothing left", leftover(consumer))
	standard := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "other", Type: pulsar.Shared, RetryEnable: true})
	message := receive(standard)
	standard.ReconsumeLater(message, time.Millisecond)
	w.say("standard name", strings.HasSuffix(receive(standard).Topic(), "t-other-RETRY"))
}

func seek(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	ids := send(producer, "a", "b", "c")
	time.Sleep(20 * time.Millisecond)
	middle := time.Now()
	time.Sleep(20 * time.Millisecond)
	send(producer, "d", "e")
	w.say("at first", drain(consumed{consumer}))
	w.say("earliest", consumer.Seek(earliest), drain(consumed{consumer}))
	w.say("to the second", consumer.Seek(ids[1]), drain(consumed{consumer}))
	w.say("to a time", consumer.SeekByTime(middle), drain(consumed{consumer}))
	w.say("latest", consumer.Seek(latest), leftover(consumer))
	w.say("to a time long ago", consumer.SeekByTime(time.UnixMilli(1)), drain(consumed{consumer}))
	w.say("to a time to come", consumer.SeekByTime(time.Now().Add(time.Hour)), leftover(consumer))
	w.say("last", must(consumer.GetLastMessageIDs())[0].EntryID())
	inclusive := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "inclusive", StartMessageIDInclusive: true})
	w.say("inclusively to the second", inclusive.Seek(ids[1]), drain(consumed{inclusive}))
	batched := w.producer(pulsar.ProducerOptions{Topic: w.topic("batched"), BatchingMaxPublishDelay: time.Minute})
	consumer = w.consumer(pulsar.ConsumerOptions{Topic: w.topic("batched")})
	sendTogether(batched, keyed("a", "b", "c")...)
	receive(consumer)
	second := receive(consumer)
	w.say("into a batch", consumer.Seek(second.ID()), drain(consumed{consumer}))
}
