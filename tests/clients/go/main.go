// A user of the published Go client and of its admin client.
//
// Arguments: a scenario, the service URL, the web URL, a prefix of topic names, and words of the scenario's own. Each step
// prints one line that is the same in every run: what came, or which error.
package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
)

const (
	patience = 10 * time.Second       // for what must come
	silence  = 300 * time.Millisecond // for what must not
)

// Consumers refuse to seek to the two that the client has, as those name no partition.
var (
	earliest = pulsar.NewMessageID(-1, -1, -1, 0)
	latest   = pulsar.NewMessageID(math.MaxInt64, math.MaxInt64, -1, 0)
)

var scenarios = map[string]func(*walk){
	"access_modes":          accessModes,
	"acknowledgements":      acknowledgements,
	"admin_misuse":          adminMisuse,
	"admin_policies":        adminPolicies,
	"admin_schemas":         adminSchemas,
	"admin_subscriptions":   adminSubscriptions,
	"admin_topics":          adminTopics,
	"batches":               batches,
	"chunks":                chunks,
	"client_options":        clientOptions,
	"compacted":             compacted,
	"compression":           compression,
	"dead_letters":          deadLetters,
	"deduplication":         deduplication,
	"delayed_delivery":      delayedDelivery,
	"encryption":            encryption,
	"event_listener":        eventListener,
	"exclusive_consumers":   exclusiveConsumers,
	"interceptors":          interceptors,
	"key_shared":            keyShared,
	"kill_and_restart":      killAndRestart,
	"load":                  load,
	"many_topics":           manyTopics,
	"message_fields":        messageFields,
	"missing_names":         missingNames,
	"negative_acks":         negativeAcks,
	"non_durable":           nonDurable,
	"non_persistent":        nonPersistent,
	"partitions":            partitions,
	"pending_limits":        pendingLimits,
	"producer_names":        producerNames,
	"readers":               readers,
	"retry_letters":         retryLetters,
	"schemas":               schemas,
	"schemas_of_each_type":  schemasOfEachType,
	"secured":               secured,
	"seek":                  seek,
	"subscription_life":     subscriptionLife,
	"table_view":            tableView,
	"terminate_under_load":  terminateUnderLoad,
	"topic_pattern":         topicPattern,
	"transactions":          transactions,
	"unload":                unload,
	"zero_queue_and_shared": zeroQueueAndShared,
}

// What a scenario has: clients, names of its own, and the words after them on the command line.
type walk struct {
	url, web, prefix string
	words            []string
	client           pulsar.Client
	admin            pulsaradmin.Client
	lines            sync.Mutex
}

func main() {
	w := &walk{url: os.Args[2], web: os.Args[3], prefix: os.Args[4], words: os.Args[5:]}
	w.client = w.newClient(pulsar.ClientOptions{URL: w.url})
	w.admin, _ = pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: w.web})
	scenarios[os.Args[1]](w)
	w.client.Close()
}

// A client that logs errors only.
func (w *walk) newClient(options pulsar.ClientOptions) pulsar.Client {
	if options.OperationTimeout == 0 {
		options.OperationTimeout = patience
	}
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	options.Logger = log.NewLoggerWithSlog(quiet)
	return must(pulsar.NewClient(options))
}

func (w *walk) topic(name string) string { return "persistent://public/default/" + w.prefix + name }

// One line: the name of a step and what came of it.
func (w *walk) say(step string, values ...any) {
	parts := []string{}
	for _, value := range values {
		switch it := value.(type) {
		case nil:
		case error:
			parts = append(parts, errorText(it))
		default:
			parts = append(parts, fmt.Sprint(it))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "ok")
	}
	w.lines.Lock()
	defer w.lines.Unlock()
	fmt.Println(strings.ReplaceAll(step+": "+strings.Join(parts, " "), w.prefix, ""))
}

var serverError = regexp.MustCompile(`server error: (\w+)`)

// The server's error by its name, and the client's own as it is.
func errorText(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "DeadlineExceeded"
	}
	if found := serverError.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func pointer[T any](value T) *T { return &value }

// What a map has, in the order of its keys.
func inOrder[V any](values map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if !yield(key, values[key]) {
				return
			}
		}
	}
}

func within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	time.AfterFunc(2*limit, cancel)
	return ctx
}

func (w *walk) producer(options pulsar.ProducerOptions) pulsar.Producer {
	return must(w.client.CreateProducer(options))
}

// Subscribed from the earliest message on.
func (w *walk) consumer(options pulsar.ConsumerOptions) pulsar.Consumer {
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	if options.SubscriptionName == "" {
		options.SubscriptionName = "sub"
	}
	return must(w.client.Subscribe(options))
}

func send(producer pulsar.Producer, payloads ...string) []pulsar.MessageID {
	ids := []pulsar.MessageID{}
	for _, payload := range payloads {
		ids = append(ids, sendMessage(producer, pulsar.ProducerMessage{Payload: []byte(payload)}))
	}
	return ids
}

func sendMessage(producer pulsar.Producer, message pulsar.ProducerMessage) pulsar.MessageID {
	return must(producer.Send(within(patience), &message))
}

// The messages go out together, as one batch when the producer makes batches.
func sendTogether(producer pulsar.Producer, messages ...pulsar.ProducerMessage) {
	for index := range messages {
		producer.SendAsync(context.Background(), &messages[index], func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
	}
	check(producer.Flush())
}

// Anything that gives messages one by one.
type source interface {
	receive(limit time.Duration) (pulsar.Message, error)
}

type consumed struct{ pulsar.Consumer }
type read struct{ pulsar.Reader }

func (c consumed) receive(limit time.Duration) (pulsar.Message, error) {
	return c.Receive(within(limit))
}
func (r read) receive(limit time.Duration) (pulsar.Message, error) { return r.Next(within(limit)) }

func receive(consumer pulsar.Consumer) pulsar.Message {
	return must(consumer.Receive(within(patience)))
}

// The payloads of the next messages, acknowledged.
func receiveAll(consumer pulsar.Consumer, count int) []string {
	payloads := []string{}
	for range count {
		message := receive(consumer)
		payloads = append(payloads, string(message.Payload()))
		check(consumer.Ack(message))
	}
	return payloads
}

func sorted(texts []string) []string {
	slices.Sort(texts)
	return texts
}

// What comes until nothing comes any more.
func drain(from source) []string {
	payloads := []string{}
	limit := 2 * time.Second
	for {
		message, err := from.receive(limit)
		if err != nil {
			return payloads
		}
		payloads = append(payloads, string(message.Payload()))
		limit = silence
	}
}

// What comes when nothing should.
func leftover(consumer pulsar.Consumer) any {
	message, err := consumer.Receive(within(silence))
	if err != nil {
		return "nothing"
	}
	return string(message.Payload())
}

func eventually(condition func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}
