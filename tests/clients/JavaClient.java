import com.google.protobuf.Timestamp;
import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SchemaSerializationException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.impl.DefaultCryptoKeyReader;
import org.apache.pulsar.common.policies.data.ClusterData;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/** What only the Java client has. Arguments: service URL, web URL, prefix of topics; a line for each check: name, ok or FAILED and why. */
public class JavaClient {
    private static final int TIMEOUT_S = 15;
    private static final String KEY = "key";

    private interface Check {
        void run(String topic) throws Exception;
    }

    /** What the first applications send. */
    public static class First {
        public static class Order {
            public String id;
            public int count;
        }
    }

    /** A later version that both sides can read. */
    public static class Second {
        public static class Order {
            public String id;
            public int count;
            public String note;
        }
    }

    private final PulsarClient client;
    private final PulsarAdmin admin;

    private JavaClient(PulsarClient client, PulsarAdmin admin) {
        this.client = client;
        this.admin = admin;
    }

    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0])
                .operationTimeout(TIMEOUT_S, TimeUnit.SECONDS).build();
        PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[1]).build();
        for (Map.Entry<String, Check> each : new JavaClient(client, admin).checks().entrySet()) {
            String outcome = "ok";
            try {
                each.getValue().run(args[2] + each.getKey());
            } catch (Throwable failure) {
                outcome = "FAILED " + failure.toString().replaceAll("\\s+", " ");
            }
            System.out.println(each.getKey() + " " + outcome);
        }
        admin.close();
        client.close();
        System.exit(0);  // A client that failed half-way would keep it alive.
    }

    private Map<String, Check> checks() {
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("auto_produce_avro", topic -> autoProduce(topic, Schema.AVRO(First.Order.class)));
        checks.put("auto_produce_json", topic -> autoProduce(topic, Schema.JSON(First.Order.class)));
        checks.put("auto_consume_two_versions", this::autoConsume);
        checks.put("protobuf_native", this::protobufNative);
        checks.put("key_value_separated", topic -> keyValue(topic, KeyValueEncodingType.SEPARATED));
        checks.put("key_value_inline", topic -> keyValue(topic, KeyValueEncodingType.INLINE));
        checks.put("readers_by_key_hash_range", this::readersByKeyHashRange);
        checks.put("compacted_table_view", this::compactedTableView);
        checks.put("key_shared_dead_letter", this::keySharedDeadLetter);
        checks.put("chunks_of_chosen_size", this::chunksOfChosenSize);
        checks.put("producer_waits_for_exclusive", this::producerWaitsForExclusive);
        checks.put("exclusive_producer_with_fencing", this::exclusiveProducerWithFencing);
        checks.put("pattern_watch", this::patternWatch);
        checks.put("seek_inside_of_batches", this::seekInsideOfBatches);
        checks.put("chunk_ids", this::chunkIds);
        checks.put("reader_asks_for_more", this::readerAsksForMore);
        checks.put("retry_letters", this::retryLetters);
        checks.put("encrypted", this::encrypted);
        checks.put("unloaded_under_load", this::unloadedUnderLoad);
        checks.put("new_partitions", this::newPartitions);
        checks.put("lookup_over_http", this::lookupOverHttp);
        checks.put("odd_names", this::oddNames);
        checks.put("admin_of_namespaces", this::adminOfNamespaces);
        return checks;
    }

    /** The producer has no schema of its own: it takes the topic's and checks the bytes by it. */
    private void autoProduce(String topic, Schema<First.Order> schema) throws Exception {
        try (Consumer<First.Order> consumer = consumer(topic, schema).subscribe();
                Producer<byte[]> producer = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create()) {
            producer.send(schema.encode(firstOrder("right")));
            equal("right", received(consumer).getValue().id);
            try {
                producer.send("?".getBytes(StandardCharsets.UTF_8));
            } catch (SchemaSerializationException refused) {
                return;
            }
            throw new AssertionError("wrong bytes were sent");
        }
    }

    private void autoConsume(String topic) throws Exception {
        try (Consumer<GenericRecord> consumer = consumer(topic, Schema.AUTO_CONSUME()).subscribe()) {
            try (Producer<First.Order> producer = producer(topic, Schema.AVRO(First.Order.class)).create()) {
                producer.send(firstOrder("first"));
            }
            Second.Order later = new Second.Order();
            later.id = "second";
            later.note = "new";
            try (Producer<Second.Order> producer = producer(topic, Schema.AVRO(Second.Order.class)).create()) {
                producer.send(later);
            }
            GenericRecord first = received(consumer).getValue();
            GenericRecord second = received(consumer).getValue();
            equal("first", first.getField("id"));
            equal(2, first.getFields().size());
            equal("second", second.getField("id"));
            equal("new", second.getField("note"));
            equal(3, second.getFields().size());
        }
    }

    private void protobufNative(String topic) throws Exception {
        Schema<Timestamp> schema = Schema.PROTOBUF_NATIVE(Timestamp.class);
        try (Consumer<Timestamp> consumer = consumer(topic, schema).subscribe();
                Consumer<GenericRecord> generic =
                        consumer(topic, Schema.AUTO_CONSUME()).subscriptionName("generic").subscribe();
                Producer<Timestamp> producer = producer(topic, schema).create()) {
            Timestamp sent = Timestamp.newBuilder().setSeconds(7).setNanos(3).build();
            producer.send(sent);
            equal(sent, received(consumer).getValue());
            equal(7L, received(generic).getValue().getField("seconds"));
            equal(SchemaType.PROTOBUF_NATIVE, admin.schemas().getSchemaInfo(topic).getType());
        }
    }

    private void keyValue(String topic, KeyValueEncodingType encoding) throws Exception {
        Schema<KeyValue<String, First.Order>> schema =
                Schema.KeyValue(Schema.STRING, Schema.JSON(First.Order.class), encoding);
        try (Consumer<KeyValue<String, First.Order>> consumer = consumer(topic, schema).subscribe();
                Consumer<GenericRecord> generic =
                        consumer(topic, Schema.AUTO_CONSUME()).subscriptionName("generic").subscribe();
                Producer<KeyValue<String, First.Order>> producer = producer(topic, schema).create()) {
            producer.send(new KeyValue<>(KEY, firstOrder("value")));
            Message<KeyValue<String, First.Order>> message = received(consumer);
            equal(KEY, message.getValue().getKey());
            equal("value", message.getValue().getValue().id);
            equal(encoding == KeyValueEncodingType.SEPARATED, message.hasKey());
            KeyValue<?, ?> read = (KeyValue<?, ?>) received(generic).getValue().getNativeObject();
            equal(KEY, read.getKey());
            equal("value", ((GenericRecord) read.getValue()).getField("id"));
        }
    }

    private void readersByKeyHashRange(String topic) throws Exception {
        int count = 40;
        try (Reader<Integer> low = reader(topic, Range.of(0, 32767));
                Reader<Integer> high = reader(topic, Range.of(32768, 65535));
                Producer<Integer> producer = producer(topic, Schema.INT32).create()) {
            for (int number = 0; number < count; number++) {
                producer.newMessage().key(KEY + number).value(number).send();
            }
            Set<String> lowKeys = keysOf(low);
            Set<String> highKeys = keysOf(high);
            equal(count, lowKeys.size() + highKeys.size());
            equal(false, lowKeys.isEmpty() || highKeys.isEmpty());
            lowKeys.addAll(highKeys);
            equal(count, lowKeys.size());
        }
    }

    private Reader<Integer> reader(String topic, Range range) throws Exception {
        return client.newReader(Schema.INT32).topic(topic).startMessageId(MessageId.earliest).keyHashRange(range)
                .create();
    }

    /** Until nothing came for a second: a reader by range cannot know which message is its last. */
    private static Set<String> keysOf(Reader<Integer> reader) throws Exception {
        Set<String> keys = new HashSet<>();
        for (Message<Integer> each = reader.readNext(TIMEOUT_S, TimeUnit.SECONDS); each != null;
                each = reader.readNext(1, TimeUnit.SECONDS)) {
            keys.add(each.getKey());
        }
        return keys;
    }

    private void compactedTableView(String topic) throws Exception {
        try (Producer<String> producer = producer(topic, Schema.STRING).create()) {
            producer.newMessage().key(KEY).value("old").send();
            producer.newMessage().key("deleted").value("value").send();
            producer.newMessage().key(KEY).value("new").send();
            producer.newMessage().key("deleted").value(null).send();
            admin.topics().triggerCompaction(topic);
            while (admin.topics().compactionStatus(topic).status == LongRunningProcessStatus.Status.RUNNING) {
                Thread.sleep(20);
            }
            equal(LongRunningProcessStatus.Status.SUCCESS, admin.topics().compactionStatus(topic).status);
            producer.newMessage().key("later").value("value").send();
        }
        try (Consumer<String> consumer = consumer(topic, Schema.STRING).readCompacted(true).subscribe()) {
            equal("new", received(consumer).getValue());
            equal("later", received(consumer).getKey());
        }
        try (TableView<String> view = client.newTableView(Schema.STRING).topic(topic).create()) {
            Map<String, String> entries = new HashMap<>();
            view.forEach(entries::put);
            equal(Map.of(KEY, "new", "later", "value"), entries);
        }
    }

    private void keySharedDeadLetter(String topic) throws Exception {
        DeadLetterPolicy policy =
                DeadLetterPolicy.builder().maxRedeliverCount(1).deadLetterTopic(topic + "-dead").build();
        try (Consumer<String> dead = consumer(topic + "-dead", Schema.STRING).subscribe();
                Consumer<String> consumer = consumer(topic, Schema.STRING)
                        .subscriptionType(SubscriptionType.Key_Shared).deadLetterPolicy(policy)
                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
                Producer<String> producer = producer(topic, Schema.STRING).create()) {
            producer.newMessage().key(KEY).value("poison").send();
            for (int delivery = 0; delivery < 2; delivery++) {
                Message<String> message = consumer.receive(TIMEOUT_S, TimeUnit.SECONDS);
                equal("poison", message.getValue());
                equal(delivery, message.getRedeliveryCount());
                consumer.negativeAcknowledge(message);
            }
            Message<String> message = received(dead);
            equal("poison", message.getValue());
            equal(KEY, message.getKey());
            producer.newMessage().key(KEY).value("next").send();
            equal("next", received(consumer).getValue());
        }
    }

    private void chunksOfChosenSize(String topic) throws Exception {
        String value = "0123456789".repeat(1_050);
        try (Consumer<String> consumer =
                        consumer(topic, Schema.STRING).subscriptionType(SubscriptionType.Key_Shared).subscribe();
                Producer<String> producer =
                        producer(topic, Schema.STRING).enableChunking(true).chunkMaxMessageSize(1_000).create()) {
            producer.newMessage().key(KEY).value(value).send();
            equal(value, received(consumer).getValue());
        }
        long entries = admin.topics().getInternalStats(topic).numberOfEntries;
        equal(true, entries > value.length() / 1_000);
    }

    private void producerWaitsForExclusive(String topic) throws Exception {
        CompletableFuture<Producer<String>> waiting;
        try (Producer<String> first =
                producer(topic, Schema.STRING).accessMode(ProducerAccessMode.Exclusive).create()) {
            waiting = producer(topic, Schema.STRING).accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
            first.send("first");
            equal(false, waiting.isDone());
        }
        try (Producer<String> second = waiting.get(TIMEOUT_S, TimeUnit.SECONDS)) {
            second.send("second");
        }
    }

    private void exclusiveProducerWithFencing(String topic) throws Exception {
        Producer<String> first = producer(topic, Schema.STRING).accessMode(ProducerAccessMode.Exclusive).create();
        try (Producer<String> second =
                producer(topic, Schema.STRING).accessMode(ProducerAccessMode.ExclusiveWithFencing).create()) {
            try {
                first.send("fenced");
                throw new AssertionError("the first producer is not fenced");
            } catch (PulsarClientException.ProducerFencedException fenced) {
                second.send("second");
            }
        } finally {
            first.close();
        }
    }

    /** The period is longer than the whole run: only a watcher can tell of the second topic. A pattern has 50 characters at most. */
    private void patternWatch(String topic) throws Exception {
        try (Producer<String> before = producer(topic + "-before", Schema.STRING).create();
                Consumer<String> consumer = client.newConsumer(Schema.STRING)
                        .topicsPattern(Pattern.compile(topic + "-.*")).patternAutoDiscoveryPeriod(600, TimeUnit.SECONDS)
                        .subscriptionName("all").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            before.send("before");
            equal("before", received(consumer).getValue());
            try (Producer<String> after = producer(topic + "-after", Schema.STRING).create()) {
                after.send("after");
                equal("after", received(consumer).getValue());
            }
        }
    }

    private void seekInsideOfBatches(String topic) throws Exception {
        List<MessageId> ids = sendOneBatch(topic, 6);
        for (boolean isInclusive : new boolean[] {false, true}) {
            for (SubscriptionType type : SubscriptionType.values()) {
                ConsumerBuilder<String> builder = consumer(topic, Schema.STRING)
                        .subscriptionName(type.name() + isInclusive).subscriptionType(type);
                try (Consumer<String> consumer = (isInclusive ? builder.startMessageIdInclusive() : builder).subscribe()) {
                    consumer.seek(ids.get(3));
                    equal(isInclusive ? "3" : "4", received(consumer).getValue());
                    consumer.seek(partition -> ids.get(1));
                    equal(isInclusive ? "1" : "2", received(consumer).getValue());
                    consumer.seek(0);
                    equal("0", received(consumer).getValue());
                }
            }
        }
    }

    /** A message in chunks is known by its first and its last one. */
    private void chunkIds(String topic) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer =
                producer(topic, Schema.BYTES).enableChunking(true).chunkMaxMessageSize(1_000).create()) {
            for (int size = 2_500; size < 2_505; size++) {
                ids.add(producer.send(new byte[size]));
            }
        }
        try (Reader<byte[]> behind = client.newReader().topic(topic).startMessageId(ids.get(2)).create();
                Reader<byte[]> at =
                        client.newReader().topic(topic).startMessageId(ids.get(2)).startMessageIdInclusive().create()) {
            equal(2_503, behind.readNext(TIMEOUT_S, TimeUnit.SECONDS).getData().length);
            equal(2_502, at.readNext(TIMEOUT_S, TimeUnit.SECONDS).getData().length);
            at.seek(ids.get(0));
            equal(2_500, at.readNext(TIMEOUT_S, TimeUnit.SECONDS).getData().length);
        }
        equal(ids.get(4), MessageId.fromByteArray(ids.get(4).toByteArray()));
    }

    private void readerAsksForMore(String topic) throws Exception {
        try (Reader<String> early = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest).create()) {
            equal(false, early.hasMessageAvailable());
            List<MessageId> ids = sendOneBatch(topic, 3);
            equal(true, early.hasMessageAvailable());
            early.seek(ids.get(1));
            equal("2", early.readNext(TIMEOUT_S, TimeUnit.SECONDS).getValue());
            equal(false, early.hasMessageAvailable());
            early.seek(MessageId.latest);
            equal(false, early.hasMessageAvailable());
            early.seek(MessageId.earliest);
            equal(true, early.hasMessageAvailable());
            equal(ids.get(2), early.getLastMessageIds().get(0));
        }
        try (Reader<String> later = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.latest)
                .startMessageIdInclusive().create()) {
            equal(true, later.hasMessageAvailable());
        }
    }

    private void retryLetters(String topic) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(1).retryLetterTopic(topic + "-again")
                .deadLetterTopic(topic + "-dead").initialSubscriptionName("looked-at").build();
        try (Consumer<First.Order> consumer = consumer(topic, Schema.AVRO(First.Order.class))
                        .subscriptionType(SubscriptionType.Shared).enableRetry(true).deadLetterPolicy(policy).subscribe();
                Producer<First.Order> producer = producer(topic, Schema.AVRO(First.Order.class)).create()) {
            producer.newMessage().key(KEY).eventTime(7).value(firstOrder("poison")).send();
            for (int delivery = 0; delivery < 2; delivery++) {
                Message<First.Order> message = consumer.receive(TIMEOUT_S, TimeUnit.SECONDS);
                equal("poison", message.getValue().id);
                equal(KEY, message.getKey());
                equal(delivery == 0 ? "null" : "1", String.valueOf(message.getProperty("RECONSUMETIMES")));
                consumer.reconsumeLater(message, Map.of("why", "test"), 100, TimeUnit.MILLISECONDS);
            }
            try (Consumer<First.Order> dead =
                    consumer(topic + "-dead", Schema.AVRO(First.Order.class)).subscriptionName("looked-at").subscribe()) {
                equal("poison", received(dead).getValue().id);
            }
        }
    }

    private void encrypted(String topic) throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2_048);
        KeyPair pair = generator.generateKeyPair();
        CryptoKeyReader keys = DefaultCryptoKeyReader.builder()
                .defaultPublicKey(pem("PUBLIC", pair.getPublic().getEncoded()))
                .defaultPrivateKey(pem("PRIVATE", pair.getPrivate().getEncoded())).build();
        String value = "secret".repeat(500);
        try (Consumer<String> reads = consumer(topic, Schema.STRING).cryptoKeyReader(keys).subscribe();
                Consumer<String> drops = consumer(topic, Schema.STRING).subscriptionName("drops")
                        .cryptoFailureAction(ConsumerCryptoFailureAction.DISCARD).subscribe();
                Consumer<byte[]> takes = consumer(topic, Schema.BYTES).subscriptionName("takes")
                        .cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME).subscribe();
                Producer<String> whole = producer(topic, Schema.STRING).addEncryptionKey(KEY).cryptoKeyReader(keys).create();
                Producer<String> chunked = producer(topic, Schema.STRING).addEncryptionKey(KEY).cryptoKeyReader(keys)
                        .enableChunking(true).chunkMaxMessageSize(1_000).create()) {
            whole.send(value);
            equal(true, received(takes).getEncryptionCtx().isPresent());
            chunked.send(value);
            equal(value, received(reads).getValue());
            equal(value, received(reads).getValue());
            equal(true, drops.receive(300, TimeUnit.MILLISECONDS) == null);
        }
    }

    private static String pem(String kind, byte[] key) {
        String lines = Base64.getMimeEncoder().encodeToString(key);
        String text = "-----BEGIN " + kind + " KEY-----\n" + lines + "\n-----END " + kind + " KEY-----\n";
        return "data:application/x-pem-file;base64," + Base64.getEncoder().encodeToString(text.getBytes());
    }

    private void unloadedUnderLoad(String topic) throws Exception {
        int count = 2_000;
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Consumer<String> consumer =
                        consumer(topic, Schema.STRING).subscriptionType(SubscriptionType.Key_Shared).subscribe();
                Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).maxPendingMessages(count)
                        .batchingMaxPublishDelay(1, TimeUnit.MILLISECONDS).create()) {
            for (int number = 0; number < count; number++) {
                sent.add(producer.newMessage().key(KEY + number % 7).value("" + number).sendAsync());
                if (number % 800 == 400) {
                    admin.topics().unload(topic);
                }
            }
            MessageId before = MessageId.earliest;
            for (CompletableFuture<MessageId> each : sent) {
                MessageId id = each.get(TIMEOUT_S, TimeUnit.SECONDS);
                equal(true, before.compareTo(id) < 0);
                before = id;
            }
            Set<String> values = new HashSet<>();
            while (values.size() < count) {
                values.add(received(consumer).getValue());
            }
        }
    }

    private void newPartitions(String topic) throws Exception {
        admin.topics().createPartitionedTopic(topic, 1);
        try (Consumer<String> consumer = consumer(topic, Schema.STRING)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Latest)
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe()) {
            admin.topics().updatePartitionedTopic(topic, 3);
            try (Producer<String> producer = producer(topic, Schema.STRING)
                    .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create()) {
                for (int number = 0; number < 6; number++) {
                    producer.send("" + number);
                }
            }
            Set<String> values = new HashSet<>();
            while (values.size() < 6) {
                values.add(received(consumer).getValue());
            }
        }
        equal(3, client.getPartitionsForTopic(topic).get().size());
    }

    private void lookupOverHttp(String topic) throws Exception {
        try (PulsarClient http = PulsarClient.builder().serviceUrl(admin.getServiceUrl()).build();
                Producer<First.Order> producer = http.newProducer(Schema.JSON(First.Order.class)).topic(topic).create();
                Consumer<GenericRecord> consumer = http.newConsumer(Schema.AUTO_CONSUME())
                        .topicsPattern(topic.replace("persistent://", "") + ".*").subscriptionName("all")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            producer.send(firstOrder("over http"));
            equal("over http", received(consumer).getValue().getField("id"));
        }
    }

    private void oddNames(String topic) throws Exception {
        for (String name : List.of("a/b", "with space", "a+b", "per%cent", "per%2F", "\u65e5\u672c", "a?b#c&d", "\\:")) {
            String local = topic + name.replace("/", "-");
            try (Producer<String> producer = producer(local, Schema.STRING).create();
                    Consumer<String> consumer = consumer(local, Schema.STRING).subscriptionName(name).subscribe()) {
                producer.send(name);
                equal(name, received(consumer).getValue());
            }
            admin.topics().resetCursor(local, name, MessageId.earliest);
            equal(1, admin.topics().peekMessages(local, name, 1).size());
            admin.topics().skipAllMessages(local, name);
            equal(List.of(name), admin.topics().getSubscriptions(local));
            admin.topics().deleteSubscription(local, name);
            admin.topics().delete(local);
        }
        try {
            consumer(topic, Schema.STRING).subscriptionName("pulsar.repl.x").subscribe();
            throw new AssertionError("a name of the broker's own was given away");
        } catch (PulsarClientException.ProducerBusyException reserved) {
            equal(true, reserved.getMessage().contains("reserved"));
        }
    }

    /** What the admin client says in ways of its own. */
    private void adminOfNamespaces(String topic) throws Exception {
        String namespace = "public/java-admin";
        admin.namespaces().createNamespace(namespace, 4);
        admin.namespaces().setNamespaceAntiAffinityGroup(namespace, "apart");
        equal("apart", admin.namespaces().getNamespaceAntiAffinityGroup(namespace));
        try (Producer<String> producer =
                producer("non-persistent://" + namespace + "/listed", Schema.STRING).create()) {
            String bundle = admin.lookups().getBundleRange(producer.getTopic());
            equal(List.of(producer.getTopic()), admin.nonPersistentTopics().getListInBundle(namespace, bundle));
        }
        try {
            admin.clusters().createCluster("java-east", ClusterData.builder().serviceUrl("east").build());
            throw new AssertionError("a cluster without a URL was made");
        } catch (PulsarAdminException refused) {
            equal(400, refused.getStatusCode());
        }
        try {
            admin.tenants().createTenant("java-tenant", TenantInfo.builder().adminRoles(Set.of(" boss"))
                    .allowedClusters(Set.of("standalone")).build());
            throw new AssertionError("a role with a space was taken");
        } catch (PulsarAdminException.PreconditionFailedException refused) {
            equal(412, refused.getStatusCode());
        }
    }

    /** Their ids; the values are numbers. */
    private List<MessageId> sendOneBatch(String topic, int count) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        List<MessageId> ids = new ArrayList<>();
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic)
                .batchingMaxPublishDelay(TIMEOUT_S, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < count; number++) {
                sent.add(producer.sendAsync("" + number));
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                ids.add(each.get());
            }
        }
        return ids;
    }

    /** Each message is an entry, and fails soon. */
    private <T> ProducerBuilder<T> producer(String topic, Schema<T> schema) {
        return client.newProducer(schema).topic(topic).enableBatching(false).sendTimeout(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private <T> ConsumerBuilder<T> consumer(String topic, Schema<T> schema) {
        return client.newConsumer(schema).topic(topic).subscriptionName("all")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static <T> Message<T> received(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(TIMEOUT_S, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("nothing came");
        }
        consumer.acknowledge(message);
        return message;
    }

    private static First.Order firstOrder(String id) {
        First.Order order = new First.Order();
        order.id = id;
        order.count = 1;
        return order;
    }

    private static void equal(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
