package main

import (
	"fmt"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	orderSchema = `{"type":"record","name":"Order","namespace":"test","fields":[{"name":"ID","type":"int"},{"name":"Name","type":"string"}]}`
	widerSchema = `{"type":"record","name":"Order","namespace":"test","fields":[{"name":"ID","type":"int"},{"name":"Name","type":"string"},{"name":"Note","type":["null","string"],"default":null}]}`
	otherSchema = `{"type":"record","name":"Order","namespace":"test","fields":[{"name":"Other","type":"long"}]}`
	protoSchema = `{"type":"record","name":"Timestamp","namespace":"test","fields":[{"name":"seconds","type":"long"},{"name":"nanos","type":"int"}]}`
)

type order struct {
	ID   int
	Name string
}

func schemas(w *walk) {
	topic := w.topic("t")
	avro := pulsar.NewAvroSchema(orderSchema, map[string]string{"pulsar": "schema"})
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: avro})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Schema: avro})
	sendMessage(producer, pulsar.ProducerMessage{Value: order{7, "seven"}})
	message := receive(consumer)
	var decoded order
	w.say("value", message.GetSchemaValue(&decoded), decoded, len(message.SchemaVersion()))
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewAvroSchema(otherSchema, nil)})
	w.say("producer of another schema", err)
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "other", Schema: pulsar.NewJSONSchema(otherSchema, nil)})
	w.say("consumer of another type", err)
	_, err = w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "other", Schema: pulsar.NewAvroSchema(otherSchema, nil)})
	w.say("consumer of another schema", err)
	_, err = w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	w.say("producer of none", err)
	sendMessage(producer, pulsar.ProducerMessage{Value: &struct {
		ID   int
		Name string
		Note *string
	}{8, "eight", nil}, Schema: pulsar.NewAvroSchema(widerSchema, nil)})
	message = receive(consumer)
	w.say("of a wider schema", message.SchemaVersion()[7], len(must(w.admin.Schemas().GetAllSchemas(topic))))
	id, err := producer.Send(within(patience), &pulsar.ProducerMessage{Value: struct{ Other int64 }{1}, Schema: pulsar.NewAvroSchema(otherSchema, nil)})
	w.say("of one that does not fit", id == nil, err != nil)
	strict := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: avro, DisableMultiSchema: true})
	_, err = strict.Send(within(patience), &pulsar.ProducerMessage{Value: struct{ Other int64 }{1}, Schema: pulsar.NewAvroSchema(widerSchema, nil)})
	w.say("one schema only", err)
	info := must(w.admin.Schemas().GetSchemaInfo(topic))
	w.say("stored", info.Type, strings.Contains(string(info.Schema), "Note"))
}

func schemasOfEachType(w *walk) {
	type value struct {
		schema pulsar.Schema
		sent   any
		into   any
	}
	for name, each := range inOrder(map[string]value{
		"string": {pulsar.NewStringSchema(nil), "text", pointer(pointer(""))},
		"bytes":  {pulsar.NewBytesSchema(nil), []byte("text"), &[]byte{}},
		"int8":   {pulsar.NewInt8Schema(nil), int8(-8), pointer(int8(0))},
		"int16":  {pulsar.NewInt16Schema(nil), int16(-16), pointer(int16(0))},
		"int32":  {pulsar.NewInt32Schema(nil), int32(-32), pointer(int32(0))},
		"int64":  {pulsar.NewInt64Schema(nil), int64(-64), pointer(int64(0))},
		"float":  {pulsar.NewFloatSchema(nil), float32(1.5), pointer(float32(0))},
		"double": {pulsar.NewDoubleSchema(nil), 2.5, pointer(0.0)},
		"json":   {pulsar.NewJSONSchema(orderSchema, nil), order{1, "one"}, &order{}},
		"avro":   {pulsar.NewAvroSchema(orderSchema, nil), order{2, "two"}, &order{}},
		"proto":  {pulsar.NewProtoSchema(protoSchema, nil), &timestamppb.Timestamp{Seconds: 5}, &timestamppb.Timestamp{}},
		"native": {pulsar.NewProtoNativeSchemaWithMessage(&timestamppb.Timestamp{}, nil), &timestamppb.Timestamp{Seconds: 6}, &timestamppb.Timestamp{}},
	}) {
		topic := w.topic(name)
		producer, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: each.schema})
		if err != nil {
			w.say(name, err)
			continue
		}
		consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Schema: each.schema})
		sendMessage(producer, pulsar.ProducerMessage{Value: each.sent})
		check(receive(consumer).GetSchemaValue(each.into))
		info, err := w.admin.Schemas().GetSchemaInfo(topic)
		if err != nil {
			w.say(name, err)
			continue
		}
		w.say(name, info.Type, len(info.Schema) > 0, shown(each.into))
		producer.Close()
		w.say(name+" again", w.producer(pulsar.ProducerOptions{Topic: topic, Schema: each.schema}).LastSequenceID() < 0)
	}
}

func shown(value any) string {
	switch it := value.(type) {
	case *timestamppb.Timestamp:
		return fmt.Sprint(it.Seconds)
	case **string:
		return **it
	case *[]byte:
		return string(*it)
	case *order:
		return fmt.Sprint(*it)
	case *int8:
		return fmt.Sprint(*it)
	case *int16:
		return fmt.Sprint(*it)
	case *int32:
		return fmt.Sprint(*it)
	case *int64:
		return fmt.Sprint(*it)
	case *float32:
		return fmt.Sprint(*it)
	default:
		return fmt.Sprint(*value.(*float64))
	}
}

func adminSchemas(w *walk) {
	topic := w.topic("t")
	check(w.admin.Topics().Create(w.topicName(topic), 0))
	api := w.admin.Schemas()
	avro := func(schema string) utils.PostSchemaPayload {
		return utils.PostSchemaPayload{SchemaType: "AVRO", Schema: schema, Properties: map[string]string{"a": "b"}}
	}
	_, err := api.GetSchemaInfo(topic)
	w.status("none", err)
	check(api.CreateSchemaByPayload(topic, avro(orderSchema)))
	check(api.CreateSchemaBySchemaInfo(topic, utils.SchemaInfo{Type: "AVRO", Schema: []byte(widerSchema), Name: "t"}))
	info := must(api.GetSchemaInfoWithVersion(topic))
	w.say("newest", info.Version, info.SchemaInfo.Type, len(info.SchemaInfo.Schema) > 0, info.SchemaInfo.Timestamp > 0)
	first := must(api.GetSchemaInfoByVersion(topic, 0))
	w.say("first", first.Properties, string(first.Schema) == orderSchema)
	_, err = api.GetSchemaInfoByVersion(topic, 9)
	w.status("a version that is not there", err)
	w.say("all", len(must(api.GetAllSchemas(topic))))
	w.say("version of", must(api.GetVersionByPayload(topic, avro(widerSchema))), must(api.GetVersionByPayload(topic, avro(orderSchema))), must(api.GetVersionByPayload(topic, avro(otherSchema))))
	w.say("compatible", *must(api.TestCompatibilityWithPostSchemaPayload(topic, avro(widerSchema))))
	w.status("not compatible", api.CreateSchemaByPayload(topic, avro(otherSchema)))
	w.status("no schema", api.CreateSchemaByPayload(topic, avro("{")))
	w.say("delete", api.DeleteSchema(topic))
	_, err = api.GetSchemaInfo(topic)
	w.status("after it", err)
	w.say("delete with force", api.ForceDeleteSchema(topic))
}
