package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/prometheus/client_golang/prometheus"
)

// The parent kills the broker, starts it again, and says so by a line.
func killAndRestart(w *walk) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, SendTimeout: time.Minute})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, AckWithResponse: true})
	reader := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
	send(producer, "before")
	w.say("before", receiveAll(consumer, 1))
	impatient := w.producer(pulsar.ProducerOptions{Topic: topic, SendTimeout: time.Second})
	w.ask("kill")
	_, err := impatient.Send(within(patience), &pulsar.ProducerMessage{Payload: []byte("lost")})
	w.say("while it is away", err)
	for _, payload := range []string{"0", "1", "2"} {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(payload), Key: "key"},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
	}
	w.ask("start")
	check(producer.Flush())
	w.say("after", receiveAll(consumer, 3))
	// It may come back later than the consumer, and has the first message already: so not what comes until nothing comes.
	payloads := []string{}
	for range 4 {
		payloads = append(payloads, string(must(reader.Next(within(patience))).Payload()))
	}
	w.say("read", payloads)
}

// A question to the parent, which answers by a line.
func (w *walk) ask(question string) {
	fmt.Println("? " + question)
	_, err := os.Stdin.Read(make([]byte, 16))
	check(err)
}

func unload(w *walk) {
	namespace := "public/" + w.prefix + "unloaded"
	topic := "persistent://" + namespace + "/t"
	check(w.admin.Namespaces().CreateNamespace(namespace))
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	reader := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
	send(producer, "a")
	held := receive(consumer)
	w.say("read", string(must(reader.Next(within(patience))).Payload()))
	w.say("unload", w.admin.Topics().Unload(w.topicName(topic)))
	send(producer, "b")
	w.say("came, and again what was not acknowledged", sorted([]string{string(receive(consumer).Payload()), string(receive(consumer).Payload())}))
	w.say("acknowledge", consumer.Ack(held))
	w.say("read", string(must(reader.Next(within(patience))).Payload()))
	w.say("unload the namespace", w.admin.Namespaces().Unload(namespace))
	send(producer, "c")
	w.say("came", len(drain(consumed{consumer})) > 0)
	check(w.admin.Topics().Delete(w.topicName(topic), true, true))
	w.say("deleted with clients, made again", eventually(func() bool {
		_, err := producer.Send(within(time.Second), &pulsar.ProducerMessage{Payload: []byte("d")})
		return err == nil
	}))
	w.say("last message id of a topic that ended", func() any {
		ended := w.topic("ended")
		producer := w.producer(pulsar.ProducerOptions{Topic: ended, MaxReconnectToBroker: pointer(uint(1))})
		consumer := w.consumer(pulsar.ConsumerOptions{Topic: ended})
		send(producer, "last")
		last := must(w.admin.Topics().Terminate(w.topicName(ended)))
		_, err := producer.Send(within(patience), &pulsar.ProducerMessage{})
		w.say("send to it", err)
		w.say("what came", receiveAll(consumer, 1))
		_, err = w.client.CreateProducer(pulsar.ProducerOptions{Topic: ended})
		w.say("a producer on it", err)
		return last.EntryID
	}())
}

// A producer that is told of the end by a refused message, and not by its disconnection, times out ever after.
func terminateUnderLoad(w *walk) {
	const topics = 20
	ends := map[string]int{}
	var counting sync.Mutex
	var all sync.WaitGroup
	for number := range topics {
		all.Add(1)
		go func() {
			defer all.Done()
			ended := w.topic(fmt.Sprint("ended", number))
			producer := w.producer(pulsar.ProducerOptions{Topic: ended, MaxReconnectToBroker: pointer(uint(1)), SendTimeout: patience})
			time.AfterFunc(time.Duration(50+10*number)*time.Millisecond, func() { must(w.admin.Topics().Terminate(w.topicName(ended))) })
			var receipted atomic.Int64
			var err error
			for err == nil {
				for range 20 {
					producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")},
						func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
							if err == nil {
								receipted.Add(1)
							}
						})
				}
				_, err = producer.Send(within(2*patience), &pulsar.ProducerMessage{Payload: []byte("y")})
				if err == nil {
					receipted.Add(1)
				}
			}
			stored := must(w.admin.Topics().GetStats(w.topicName(ended))).MsgCounterIn
			counting.Lock()
			defer counting.Unlock()
			ends[errorText(err)+map[bool]string{true: "", false: ", and receipted messages are missing"}[stored >= receipted.Load()]]++
		}()
	}
	all.Wait()
	for end, count := range inOrder(ends) {
		w.say(end, count)
	}
}

// Which error comes, and that it comes at once.
func missingNames(w *walk) {
	for step, topic := range inOrder(map[string]string{"tenant": "persistent://" + w.prefix + "missing/ns/t", "namespace": "persistent://public/" + w.prefix + "missing/t"}) {
		started := time.Now()
		_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		w.say(step+": producer", err)
		_, err = w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub"})
		w.say(step+": consumer", err)
		_, err = w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
		w.say(step+": reader", err)
		_, err = w.client.TopicPartitions(topic)
		w.say(step+": partitions", err)
		w.say(step+": soon", time.Since(started) < patience)
	}
	namespace := "public/" + w.prefix + "strict"
	check(w.admin.Namespaces().CreateNamespace(namespace))
	check(w.admin.Namespaces().SetTopicAutoCreation(*w.namespaceName(namespace), utils.TopicAutoCreationConfig{Allow: false, Type: "non-partitioned"}))
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: namespace + "/t", MaxReconnectToBroker: pointer(uint(0))})
	w.say("topics are not made: producer", err)
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{Topic: namespace + "/t", SubscriptionName: "sub"})
	w.say("topics are not made: consumer", err)
	_, err = w.client.CreateReader(pulsar.ReaderOptions{Topic: namespace + "/t", StartMessageID: pulsar.EarliestMessageID()})
	w.say("topics are not made: reader", err)
}

func clientOptions(w *walk) {
	topic := w.topic("t")
	check(w.admin.Topics().Create(w.topicName(topic), 2))
	for step, options := range inOrder(map[string]pulsar.ClientOptions{
		"lookup over HTTP":   {URL: w.web},
		"several hosts":      {URL: "pulsar://127.0.0.1:1," + strings.TrimPrefix(w.url, "pulsar://")},
		"several web hosts":  {URL: "http://127.0.0.1:1," + strings.TrimPrefix(w.web, "http://")},
		"connections":        {URL: w.url, MaxConnectionsPerBroker: 3, ConnectionMaxIdleTime: time.Minute, KeepAliveInterval: time.Second},
		"metrics":            {URL: w.url, MetricsCardinality: pulsar.MetricsCardinalityTopic, CustomMetricsLabels: map[string]string{"a": "b"}, MetricsRegisterer: prometheus.NewRegistry()},
		"no metrics":         {URL: w.url, MetricsCardinality: pulsar.MetricsCardinalityNone, MetricsRegisterer: prometheus.NewRegistry()},
		"description":        {URL: w.url, Description: "described", LookupProperties: map[string]string{"a": "b"}},
		"listener":           {URL: w.url, ListenerName: "missing"},
		"listener over HTTP": {URL: w.web, ListenerName: "missing"},
		"nobody there":       {URL: "pulsar://127.0.0.1:1", OperationTimeout: time.Second, ConnectionTimeout: time.Second},
	}) {
		client := w.newClient(options)
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		for tries := 0; err != nil && strings.Contains(step, "hosts") && tries < 20; tries++ { // it takes one by one
			producer, err = client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		}
		if err != nil {
			w.say(step, strings.HasPrefix(options.URL, "pulsar://127.0.0.1:1"), errorText(err)[:12])
			continue
		}
		if step == "connections" {
			time.Sleep(2500 * time.Millisecond)
		}
		send(producer, step)
		consumer := must(client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: step, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}))
		w.say(step, receive(consumer) != nil, len(must(client.TopicPartitions(topic))))
		if step == "description" {
			stats := must(w.admin.Topics().GetStats(w.topicName(producer.Topic() + "-partition-0")))
			w.say("shown", strings.HasSuffix(stats.Publishers[0].ClientVersion, "-described"))
		}
		_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: "persistent://public/" + w.prefix + "missing/t"})
		w.say(step+": missing namespace", err != nil)
		client.Close()
	}
	overHTTP := w.newClient(pulsar.ClientOptions{URL: w.web})
	defer overHTTP.Close()
	pattern := must(overHTTP.Subscribe(pulsar.ConsumerOptions{TopicsPattern: topic + ".*", SubscriptionName: "pattern", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}))
	w.say("pattern over HTTP", receive(pattern) != nil)
	avro := pulsar.NewAvroSchema(orderSchema, nil)
	typed := must(overHTTP.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("typed"), Schema: avro}))
	sendMessage(typed, pulsar.ProducerMessage{Value: order{1, "one"}})
	consumer := must(overHTTP.Subscribe(pulsar.ConsumerOptions{Topic: w.topic("typed"), SubscriptionName: "sub", Schema: avro, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}))
	var decoded order
	w.say("schema over HTTP", receive(consumer).GetSchemaValue(&decoded), decoded)
}

// Words: URL with TLS, web URL with TLS, certificate of the authority, token of an administrator, a client's certificate and its key.
func secured(w *walk) {
	binary, web, authority, token, certificate, key := w.words[0], w.words[1], w.words[2], w.words[3], w.words[4], w.words[5]
	for step, options := range inOrder(map[string]pulsar.ClientOptions{
		"token":               {URL: w.url, Authentication: pulsar.NewAuthenticationToken(token)},
		"token over TLS":      {URL: binary, TLSTrustCertsFilePath: authority, TLSValidateHostname: true, Authentication: pulsar.NewAuthenticationToken(token)},
		"certificate":         {URL: binary, TLSTrustCertsFilePath: authority, Authentication: pulsar.NewAuthenticationTLS(certificate, key)},
		"token over HTTPS":    {URL: web, TLSTrustCertsFilePath: authority, Authentication: pulsar.NewAuthenticationToken(token)},
		"token from a call":   {URL: w.url, Authentication: pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) { return token, nil })},
		"token over HTTP":     {URL: w.web, Authentication: pulsar.NewAuthenticationToken(token)},
		"nothing":             {URL: w.url},
		"a bad token":         {URL: w.url, Authentication: pulsar.NewAuthenticationToken("bad")},
		"a bad token, HTTP":   {URL: w.web, Authentication: pulsar.NewAuthenticationToken("bad")},
		"unknown authority":   {URL: binary, Authentication: pulsar.NewAuthenticationToken(token), ConnectionTimeout: time.Second},
		"not asked who it is": {URL: binary, TLSAllowInsecureConnection: true, Authentication: pulsar.NewAuthenticationToken(token)},
	}) {
		options.OperationTimeout = 3 * time.Second
		client := w.newClient(options)
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("t")})
		if err == nil {
			_, err = producer.Send(within(patience), &pulsar.ProducerMessage{Payload: []byte("x")})
			w.say(step, err)
		} else {
			w.say(step, "refused")
		}
		client.Close()
	}
	for step, config := range inOrder(map[string]pulsaradmin.Config{
		"admin with a token":       {WebServiceURL: web, TLSTrustCertsFilePath: authority, Token: token},
		"admin with a certificate": {WebServiceURL: web, TLSTrustCertsFilePath: authority, AuthPlugin: "org.apache.pulsar.client.impl.auth.AuthenticationTls", AuthParams: `{"tlsCertFile":"` + certificate + `","tlsKeyFile":"` + key + `"}`},
		"admin with nothing":       {WebServiceURL: w.web},
	}) {
		admin := must(pulsaradmin.NewClient(&config))
		_, err := admin.Tenants().List()
		w.status(step, err)
	}
}
