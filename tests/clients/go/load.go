package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	loadBurst = 5
	loadPause = 100 * time.Millisecond
	loadKeys  = 24
)

var loadTypes = []struct {
	name      string
	kind      pulsar.SubscriptionType
	consumers int
}{
	{"Exclusive", pulsar.Exclusive, 1},
	{"Failover", pulsar.Failover, 2},
	{"Shared", pulsar.Shared, 2},
	{"Key_Shared", pulsar.KeyShared, 2},
}

// The Go client under `tests/bookkeeper/program_load.py`, which has the protocol and checks the messages. The words are
// service URLs of the clients, divided by ";", and topics.
func load(w *walk) {
	clients := []pulsar.Client{}
	for _, url := range strings.Split(w.words[0], ";") {
		clients = append(clients, w.newClient(pulsar.ClientOptions{URL: url, OperationTimeout: time.Minute}))
	}
	count := 0
	next := func() pulsar.Client {
		count++
		return clients[count%len(clients)]
	}
	for index, topic := range w.words[1:] {
		for _, each := range loadTypes {
			for number := range each.consumers {
				consumer := must(next().Subscribe(pulsar.ConsumerOptions{
					Topic:                       topic,
					SubscriptionName:            each.name,
					Type:                        each.kind,
					Name:                        fmt.Sprint("c", number),
					SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
				}))
				go loadConsume(consumer, fmt.Sprintf("received %d %s %d", index, each.name, number))
			}
		}
	}
	var ending atomic.Bool
	var producing sync.WaitGroup
	for index, topic := range w.words[1:] {
		for _, kind := range []string{"single", "batched", "keyed"} {
			producer := must(next().CreateProducer(loadOptions(topic, kind)))
			producing.Go(func() { loadProduce(producer, fmt.Sprint(index), kind, &ending) })
		}
	}
	orders := bufio.NewReader(os.Stdin)
	orders.ReadString('\n')
	ending.Store(true)
	producing.Wait()
	fmt.Println("ended")
	orders.ReadString('\n')
	os.Exit(0)
}

func loadOptions(topic, kind string) pulsar.ProducerOptions {
	options := pulsar.ProducerOptions{
		Topic:                   topic,
		Name:                    "go-" + kind,
		SendTimeout:             -1,
		DisableBatching:         kind == "single",
		BatchingMaxPublishDelay: 20 * time.Millisecond,
	}
	if kind == "keyed" {
		options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	} else {
		// Messages without a key have an order only within their partition.
		options.MessageRouter = func(*pulsar.ProducerMessage, pulsar.TopicMetadata) int { return 0 }
	}
	return options
}

func loadProduce(producer pulsar.Producer, index, kind string, ending *atomic.Bool) {
	for count := 0; !ending.Load(); count++ {
		stream, number := kind, count
		message := pulsar.ProducerMessage{}
		if kind == "keyed" {
			stream, number = fmt.Sprintf("%s-%d", kind, count%loadKeys), count/loadKeys
			message.Key = stream
		}
		message.Payload = fmt.Appendf(nil, "%s/%d", stream, number)
		text := fmt.Sprintf("%s %s %s %d", index, kind, stream, number)
		producer.SendAsync(context.Background(), &message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err == nil {
				fmt.Println("receipt " + text)
			} else {
				fmt.Println("failed " + text + " " + errorText(err))
			}
		})
		if count%loadBurst == loadBurst-1 {
			time.Sleep(loadPause)
		}
	}
	if err := producer.Flush(); err != nil {
		fmt.Println("failed", index, kind, "flush 0", errorText(err))
	}
}

func loadConsume(consumer pulsar.Consumer, label string) {
	for {
		message, err := consumer.Receive(context.Background())
		if err != nil {
			fmt.Println("broken", label, errorText(err))
			return
		}
		fmt.Println(label + " " + strings.Replace(string(message.Payload()), "/", " ", 1))
		consumer.Ack(message) // after an error, the message comes again
	}
}
