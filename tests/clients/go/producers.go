package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

func batches(w *walk) {
	producer := w.producer(pulsar.ProducerOptions{Topic: w.topic("plain"), BatchingMaxPublishDelay: time.Minute, BatchingMaxMessages: 3})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: w.topic("plain")})
	sendTogether(producer, keyed("a", "b", "a", "c")...)
	for range 4 {
		message := receive(consumer)
		w.say("in a batch", string(message.Payload()), message.ID().BatchIdx(), "of", message.ID().BatchSize())
	}
	byKey := w.producer(pulsar.ProducerOptions{Topic: w.topic("keys"), BatchingMaxPublishDelay: time.Minute, BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	consumer = w.consumer(pulsar.ConsumerOptions{Topic: w.topic("keys"), Type: pulsar.KeyShared})
	sendTogether(byKey, keyed("a", "b", "a", "b")...)
	batchesOfKey := map[string]map[int64]bool{}
	for range 4 {
		message := receive(consumer)
		if batchesOfKey[message.Key()] == nil {
			batchesOfKey[message.Key()] = map[int64]bool{}
		}
		batchesOfKey[message.Key()][message.ID().EntryID()] = true
		check(consumer.Ack(message))
	}
	w.say("batches of each key", len(batchesOfKey["a"]), len(batchesOfKey["b"]))
	w.say("empty flush", byKey.Flush())
	w.say("flush with a context", byKey.FlushWithCtx(within(patience)))
}

// A message for each key; the payload says which one it is.
func keyed(keys ...string) []pulsar.ProducerMessage {
	messages := []pulsar.ProducerMessage{}
	for index, key := range keys {
		messages = append(messages, pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "%s%d", key, index), Key: key})
	}
	return messages
}

func chunks(w *walk) {
	producer := w.producer(pulsar.ProducerOptions{Topic: w.topic("t"), DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: w.topic("t"), MaxPendingChunkedMessage: 2, ExpireTimeOfIncompleteChunk: time.Minute, AutoAckIncompleteChunk: true})
	large := strings.Repeat("0123456789", 100)
	first := send(producer, large, "small")[0]
	message := receive(consumer)
	w.say("large", string(message.Payload()) == large, message.Key() == "")
	check(consumer.Ack(message))
	w.say("small", receiveAll(consumer, 1))
	w.say("seek to the earliest", consumer.Seek(earliest))
	w.say("again", len(drain(consumed{consumer})))
	reader := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: w.topic("t"), StartMessageID: first, StartMessageIDInclusive: true}))
	w.say("read inclusively", len(drain(read{reader})))
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("t"), EnableChunking: true})
	w.say("chunks and batches", err)
	plain := w.producer(pulsar.ProducerOptions{Topic: w.topic("t"), DisableBatching: true})
	_, err = plain.Send(within(patience), &pulsar.ProducerMessage{Payload: make([]byte, 6*1024*1024)})
	w.say("too large without chunks", err)
	huge := w.producer(pulsar.ProducerOptions{Topic: w.topic("t"), DisableBatching: true, EnableChunking: true})
	sendMessage(huge, pulsar.ProducerMessage{Payload: make([]byte, 12*1024*1024)})
	w.say("of twelve megabytes", len(receive(consumer).Payload()))
}

func compression(w *walk) {
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: w.topic("t")})
	text := strings.Repeat("compress me ", 100)
	for name, kind := range inOrder(map[string]pulsar.CompressionType{"none": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY}) {
		for _, level := range []pulsar.CompressionLevel{pulsar.Default, pulsar.Faster, pulsar.Better} {
			producer := w.producer(pulsar.ProducerOptions{Topic: w.topic("t"), CompressionType: kind, CompressionLevel: level})
			send(producer, name+text)
			producer.Close()
			if receiveAll(consumer, 1)[0] != name+text {
				w.say("not what was sent", name)
			}
		}
	}
	w.say("all came")
}

func accessModes(w *walk) {
	topic := w.topic("t")
	exclusive := w.producer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	w.say("shared beside exclusive", err)
	_, err = w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	w.say("a second exclusive", err)
	waited := make(chan pulsar.Producer)
	go func() {
		waited <- w.producer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive})
	}()
	select {
	case <-waited:
		w.say("waiting", "did not wait")
	case <-time.After(silence):
		w.say("waiting", "waits")
	}
	send(exclusive, "one")
	exclusive.Close()
	next := <-waited
	send(next, "two")
	w.say("both sent", receiveAll(w.consumer(pulsar.ConsumerOptions{Topic: topic}), 2))
}

func deduplication(w *walk) {
	topic, namespace := "persistent://public/"+w.prefix+"dedup/t", "public/"+w.prefix+"dedup"
	check(w.admin.Namespaces().CreateNamespace(namespace))
	check(w.admin.Namespaces().SetDeduplicationStatus(namespace, true))
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	options := pulsar.ProducerOptions{Topic: topic, Name: "producer", DisableBatching: true}
	producer := w.producer(options)
	w.say("last sequence id at first", producer.LastSequenceID())
	for _, sequenceID := range []int64{5, 6, 6, 3, 10} {
		id, err := producer.Send(within(patience), &pulsar.ProducerMessage{Payload: fmt.Append(nil, sequenceID), SequenceID: &sequenceID})
		w.say("sent", sequenceID, id != nil && id.EntryID() >= 0, err)
	}
	w.say("last sequence id", producer.LastSequenceID())
	producer.Close()
	producer = w.producer(options)
	w.say("last sequence id of a new one", producer.LastSequenceID())
	send(producer, "next")
	w.say("and after a message", producer.LastSequenceID())
	w.say("came", drain(consumed{consumer}))
}

func producerNames(w *walk) {
	topic := w.topic("t")
	first := w.producer(pulsar.ProducerOptions{Topic: topic, Name: "same", Properties: map[string]string{"a": "b"}})
	w.say("name and topic", first.Name(), first.Topic() == topic)
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Name: "same"})
	w.say("same name", err)
	other := w.newClient(pulsar.ClientOptions{URL: w.url})
	defer other.Close()
	_, err = other.CreateProducer(pulsar.ProducerOptions{Topic: topic, Name: "same"})
	w.say("same name, other client", err)
	first.Close()
	_, err = first.Send(within(patience), &pulsar.ProducerMessage{})
	w.say("send after close", err)
	again := w.producer(pulsar.ProducerOptions{Topic: topic, Name: "same"})
	send(again, "x")
	generated := w.producer(pulsar.ProducerOptions{Topic: topic})
	w.say("generated name", generated.Name() != "", generated.Name() != w.producer(pulsar.ProducerOptions{Topic: topic}).Name())
	_, err = w.client.CreateProducer(pulsar.ProducerOptions{Topic: ""})
	w.say("no topic", err)
	_, err = w.client.CreateProducer(pulsar.ProducerOptions{Topic: "persistent://a/b/c/d/e"})
	w.say("bad topic", err)
}

func partitions(w *walk) {
	topic := w.topic("t")
	name := w.topicName(topic)
	check(w.admin.Topics().Create(name, 2))
	w.say("partitions", len(must(w.client.TopicPartitions(topic))))
	w.say("of a plain topic", len(must(w.client.TopicPartitions(w.topic("plain")))))
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, AutoDiscoveryPeriod: 200 * time.Millisecond})
	var partition atomic.Int32
	routed := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, PartitionsAutoDiscoveryInterval: 200 * time.Millisecond,
		MessageRouter: func(_ *pulsar.ProducerMessage, metadata pulsar.TopicMetadata) int {
			return int(partition.Load()) % int(metadata.NumPartitions())
		}})
	// Received one by one: partitions have no common order.
	for number, payload := range []string{"zero", "one"} {
		partition.Store(int32(number))
		send(routed, payload)
		message := receive(consumer)
		w.say("routed", string(message.Payload()), message.ID().PartitionIdx(), strings.TrimPrefix(message.Topic(), topic))
	}
	check(w.admin.Topics().Update(name, 3))
	partition.Store(2)
	w.say("a message in the new partition", eventually(func() bool {
		return send(routed, "two")[0].PartitionIdx() == 2
	}))
	for message := receive(consumer); message.ID().PartitionIdx() != 2; message = receive(consumer) {
	}
	w.say("it came")
	for name, scheme := range inOrder(map[string]pulsar.HashingScheme{"java": pulsar.JavaStringHash, "murmur": pulsar.Murmur3_32Hash}) {
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, HashingScheme: scheme, DisableBatching: true})
		same := sendMessage(producer, pulsar.ProducerMessage{Key: name}).PartitionIdx()
		w.say("by key", same == sendMessage(producer, pulsar.ProducerMessage{Key: name}).PartitionIdx())
	}
	w.say("last ids", len(must(consumer.GetLastMessageIDs())))
	single := w.consumer(pulsar.ConsumerOptions{Topic: topic + "-partition-2", SubscriptionName: "single"})
	w.say("one partition alone", string(receive(single).Payload()))
	w.say("seek by id", consumer.Seek(earliest))
	w.say("seek by time", consumer.SeekByTime(time.Now().Add(-time.Hour)))
}

func encryption(w *walk) {
	keys := crypto.NewFileKeyReader(w.words[0], w.words[1])
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, CompressionType: pulsar.LZ4, Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"key"}}})
	knowing := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "knowing", Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys}})
	raw := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "raw", Decryption: &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume}})
	discarding := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "discarding", Decryption: &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionDiscard}})
	send(producer, "secret")
	w.say("with the key", receiveAll(knowing, 1))
	message := receive(raw)
	context := message.GetEncryptionContext()
	w.say("without it", string(message.Payload()) != "secret", len(context.Keys), context.Algorithm)
	w.say("discarded", leftover(discarding))
	namespace := "public/" + w.prefix + "encrypted"
	check(w.admin.Namespaces().CreateNamespace(namespace))
	check(w.admin.Namespaces().SetEncryptionRequiredStatus(*w.namespaceName(namespace), true))
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: namespace + "/t"})
	w.say("required", err)
}

// Tells what passed by it.
type interceptor struct {
	w *walk
}

func (i interceptor) BeforeSend(_ pulsar.Producer, message *pulsar.ProducerMessage) {
	message.Properties = map[string]string{"added": "before"}
}

func (i interceptor) OnSendAcknowledgement(_ pulsar.Producer, message *pulsar.ProducerMessage, id pulsar.MessageID) {
	i.w.say("sent", string(message.Payload), id.EntryID() >= 0)
}

func (i interceptor) BeforeConsume(message pulsar.ConsumerMessage) {
	message.Properties()["seen"] = "too"
}

func (i interceptor) OnAcknowledge(pulsar.Consumer, pulsar.MessageID) { i.w.say("acknowledged") }

func (i interceptor) OnNegativeAcksSend(_ pulsar.Consumer, ids []pulsar.MessageID) {
	i.w.say("negatively acknowledged", len(ids))
}

func interceptors(w *walk) {
	producer := w.producer(pulsar.ProducerOptions{Topic: w.topic("t"), Interceptors: pulsar.ProducerInterceptors{interceptor{w}}})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: w.topic("t"), Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond, Interceptors: pulsar.ConsumerInterceptors{interceptor{w}}})
	send(producer, "x")
	message := receive(consumer)
	w.say("properties", message.Properties())
	consumer.Nack(message)
	message = receive(consumer)
	w.say("again", message.RedeliveryCount())
	check(consumer.Ack(message))
}

func pendingLimits(w *walk) {
	producer := w.producer(pulsar.ProducerOptions{Topic: w.topic("t"), MaxPendingMessages: 2, DisableBlockIfQueueFull: true, BatchingMaxPublishDelay: time.Minute})
	results := make(chan error, 3)
	for range 3 {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { results <- err })
	}
	w.say("the third", <-results)
	check(producer.Flush())
	w.say("the others", <-results, <-results)
	small := w.newClient(pulsar.ClientOptions{URL: w.url, MemoryLimitBytes: 1024})
	defer small.Close()
	limited := must(small.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("t"), DisableBlockIfQueueFull: true, DisableBatching: true}))
	_, err := limited.Send(within(patience), &pulsar.ProducerMessage{Payload: make([]byte, 2000)})
	w.say("above the memory limit, alone", err)
	for range 20 {
		limited.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: make([]byte, 1000)}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				select {
				case results <- err:
				default:
				}
			}
		})
	}
	w.say("many", <-results)
	check(limited.Flush())
}
