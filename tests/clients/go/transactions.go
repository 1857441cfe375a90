package main

import (
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Produced, consumed, handed on, in conflict, and over by time.
func transactions(w *walk) {
	client := w.newClient(pulsar.ClientOptions{URL: w.url, EnableTransaction: true})
	defer client.Close()
	begin := func(timeout time.Duration) pulsar.Transaction { return must(client.NewTransaction(timeout)) }
	subscribe := func(topic string) pulsar.Consumer {
		return must(client.Subscribe(pulsar.ConsumerOptions{
			Topic: w.topic(topic), SubscriptionName: "sub", Type: pulsar.Shared,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		}))
	}
	produce := func(topic string) pulsar.Producer {
		return must(client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic(topic), DisableBatching: true}))
	}
	source, in, sink, out := produce("in"), subscribe("in"), produce("out"), subscribe("out")
	send(source, "a", "b")
	for _, commits := range []bool{false, true} {
		transaction := begin(time.Minute)
		for range 2 {
			message := receive(in)
			sendMessage(sink, pulsar.ProducerMessage{Payload: message.Payload(), Transaction: transaction})
			check(in.AckWithTxn(message, transaction))
		}
		_, err := out.Receive(within(silence))
		w.say("open", err)
		if commits {
			w.say("commit", transaction.Commit(within(patience)))
		} else {
			w.say("abort", transaction.Abort(within(patience)))
		}
	}
	w.say("handed on", string(receive(out).Payload()), string(receive(out).Payload()))
	_, err := in.Receive(within(silence))
	w.say("left", err)

	send(source, "c")
	message, first, second := receive(in), begin(time.Minute), begin(time.Minute)
	w.say("acknowledged", in.AckWithTxn(message, first))
	w.say("conflict", in.AckWithTxn(message, second) != nil)
	w.say("the first one", first.Commit(within(patience)))

	late := begin(time.Second)
	sendMessage(sink, pulsar.ProducerMessage{Payload: []byte("never"), Transaction: late})
	send(sink, "behind it")
	w.say("its time is over", string(receive(out).Payload()))
	w.say("too late", late.Commit(within(patience)) != nil)
}
