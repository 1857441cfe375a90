import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException;

/** Transactions of the Java client. Arguments: service URL, prefix of topics; a line for each check: name, ok or FAILED and why. */
public class JavaTransactions {
    private static final int TIMEOUT_S = 15;
    private static final int SHORT_MS = 300;

    private interface Check {
        void run(String topic) throws Exception;
    }

    private final PulsarClient client;

    private JavaTransactions(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true)
                .operationTimeout(TIMEOUT_S, TimeUnit.SECONDS).build();
        for (Map.Entry<String, Check> each : new JavaTransactions(client).checks().entrySet()) {
            String outcome = "ok";
            try {
                each.getValue().run(args[1] + each.getKey());
            } catch (Throwable failure) {
                outcome = "FAILED " + failure.toString().replaceAll("\\s+", " ");
            }
            System.out.println(each.getKey() + " " + outcome);
        }
        client.close();
        System.exit(0);  // A client that failed half-way would keep it alive.
    }

    private Map<String, Check> checks() {
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("commit", topic -> ended(topic, true));
        checks.put("abort", topic -> ended(topic, false));
        for (SubscriptionType type : SubscriptionType.values()) {
            checks.put("consume_transform_produce_" + type.name().toLowerCase(), topic -> handedOn(topic, type));
            checks.put("conflict_" + type.name().toLowerCase(), topic -> conflict(topic, type));
        }
        checks.put("time_out", this::timeOut);
        checks.put("batch", this::batch);
        checks.put("cumulative", this::cumulative);
        return checks;
    }

    /** What is sent in a transaction is seen after its commit, and what is behind it after either end. */
    private void ended(String topic, boolean commits) throws Exception {
        try (Consumer<Integer> consumer = consumer(topic, SubscriptionType.Exclusive);
                Producer<Integer> producer = producer(topic)) {
            Transaction transaction = begin();
            producer.newMessage(transaction).value(1).send();
            producer.newMessage(transaction).value(2).send();
            producer.send(3);
            equal(null, consumer.receive(SHORT_MS, TimeUnit.MILLISECONDS));
            if (commits) {
                transaction.commit().get();
                equal(1, received(consumer).getValue());
                equal(2, received(consumer).getValue());
            } else {
                transaction.abort().get();
            }
            equal(3, received(consumer).getValue());
            equal(commits ? Transaction.State.COMMITTED : Transaction.State.ABORTED, transaction.getState());
        }
    }

    /** Each message goes from one topic to the other, at first in transactions that are aborted. */
    private void handedOn(String topic, SubscriptionType type) throws Exception {
        int count = 10;
        try (Consumer<Integer> consumer = consumer(topic + "-in", type);
                Consumer<Integer> out = consumer(topic + "-out", SubscriptionType.Exclusive);
                Producer<Integer> source = producer(topic + "-in");
                Producer<Integer> sink = producer(topic + "-out")) {
            for (int number = 0; number < count; number++) {
                source.newMessage().key("k" + number).value(number).send();
            }
            for (boolean commits : new boolean[] {false, true}) {
                Transaction transaction = begin();
                for (int number = 0; number < count; number++) {
                    Message<Integer> message = received(consumer);
                    sink.newMessage(transaction).value(message.getValue()).send();
                    consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
                }
                if (commits) {
                    transaction.commit().get();
                } else {
                    transaction.abort().get();
                }
            }
            Set<Integer> found = new TreeSet<>();
            for (int number = 0; number < count; number++) {
                found.add(received(out).getValue());
            }
            equal(count, found.size());
            equal(null, out.receive(SHORT_MS, TimeUnit.MILLISECONDS));
            consumer.redeliverUnacknowledgedMessages();
            equal(null, consumer.receive(SHORT_MS, TimeUnit.MILLISECONDS));
        }
    }

    private void conflict(String topic, SubscriptionType type) throws Exception {
        try (Consumer<Integer> consumer = consumer(topic, type); Producer<Integer> producer = producer(topic)) {
            producer.send(1);
            Message<Integer> message = received(consumer);
            Transaction first = begin();
            Transaction second = begin();
            consumer.acknowledgeAsync(message.getMessageId(), first).get();
            refused(consumer, message, second);
            first.commit().get();
            refused(consumer, message, begin());
            second.abort().get();
        }
    }

    private void timeOut(String topic) throws Exception {
        try (Consumer<Integer> consumer = consumer(topic, SubscriptionType.Shared);
                Producer<Integer> producer = producer(topic)) {
            Transaction transaction = client.newTransaction().withTransactionTimeout(1, TimeUnit.SECONDS).build().get();
            producer.newMessage(transaction).value(1).send();
            producer.send(2);
            equal(2, received(consumer).getValue());  // it was held back until the time was over
            try {
                transaction.commit().get();
            } catch (ExecutionException refused) {
                Throwable cause = refused.getCause();
                if (cause instanceof TransactionCoordinatorClientException) {
                    return;
                }
                throw refused;
            }
            throw new AssertionError("it was committed after its time");
        }
    }

    /** Messages of one batch in two transactions. */
    private void batch(String topic) throws Exception {
        try (Consumer<Integer> consumer = client.newConsumer(Schema.INT32).topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).enableBatchIndexAcknowledgment(true).subscribe();
                Producer<Integer> producer = client.newProducer(Schema.INT32).topic(topic)
                        .batchingMaxPublishDelay(TIMEOUT_S, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < 4; number++) {
                producer.sendAsync(number);
            }
            producer.flush();
            Transaction committed = begin();
            Transaction aborted = begin();
            for (int number = 0; number < 4; number++) {
                Message<Integer> message = received(consumer);
                consumer.acknowledgeAsync(message.getMessageId(), number < 2 ? committed : aborted).get();
            }
            committed.commit().get();
            aborted.abort().get();
            equal(2, received(consumer).getValue());
            equal(3, received(consumer).getValue());
        }
    }

    private void cumulative(String topic) throws Exception {
        try (Consumer<Integer> consumer = consumer(topic, SubscriptionType.Failover);
                Producer<Integer> producer = producer(topic)) {
            for (int number = 0; number < 4; number++) {
                producer.send(number);
            }
            received(consumer);
            Message<Integer> second = received(consumer);
            received(consumer);
            Transaction transaction = begin();
            consumer.acknowledgeCumulativeAsync(second.getMessageId(), transaction).get();
            transaction.commit().get();
            consumer.redeliverUnacknowledgedMessages();
            equal(2, received(consumer).getValue());
            equal(3, received(consumer).getValue());
        }
    }

    private Transaction begin() throws Exception {
        return client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
    }

    private void refused(Consumer<Integer> consumer, Message<Integer> message, Transaction transaction) throws Exception {
        try {
            consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
        } catch (ExecutionException refused) {
            if (refused.getCause() instanceof PulsarClientException.TransactionConflictException) {
                return;
            }
            throw refused;
        }
        throw new AssertionError("it was acknowledged twice");
    }

    private Consumer<Integer> consumer(String topic, SubscriptionType type) throws Exception {
        return client.newConsumer(Schema.INT32).topic(topic).subscriptionName("s").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private Producer<Integer> producer(String topic) throws Exception {
        return client.newProducer(Schema.INT32).topic(topic).enableBatching(false)
                .sendTimeout(TIMEOUT_S, TimeUnit.SECONDS).create();
    }

    private static <T> Message<T> received(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(TIMEOUT_S, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("nothing came");
        }
        return message;
    }

    private static void equal(Object expected, Object found) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
