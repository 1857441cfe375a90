import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * The Java client under `program_load.py`, which has the protocol and checks the messages.
 * Arguments: service URLs of the clients, divided by ";", and topics.
 */
public class JavaLoad {
    private static final int BURST = 5;
    private static final int PAUSE_MS = 100;
    private static final int KEYS = 24;
    private static final int RECEIVE_MS = 300;
    private static final String[] PRODUCERS = {"single", "batched", "keyed"};
    private static final SubscriptionType[] TYPES = {SubscriptionType.Exclusive, SubscriptionType.Failover,
            SubscriptionType.Shared, SubscriptionType.Key_Shared};

    private static final PrintStream EVENTS = System.out;

    private static volatile boolean isEnding;

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);  // for the log of the client
        List<PulsarClient> clients = new ArrayList<>();
        for (String url : args[0].split(";")) {
            clients.add(PulsarClient.builder().serviceUrl(url).operationTimeout(60, TimeUnit.SECONDS).build());
        }
        List<Thread> threads = new ArrayList<>();
        int count = 0;
        for (int topic = 0; topic < args.length - 1; topic++) {
            for (SubscriptionType type : TYPES) {
                for (int number = 0; number < (type == SubscriptionType.Exclusive ? 1 : 2); number++) {
                    consume(clients.get(count++ % clients.size()), args[topic + 1], topic, type, number);
                }
            }
        }
        for (int topic = 0; topic < args.length - 1; topic++) {
            for (String kind : PRODUCERS) {
                Producer<byte[]> producer = producer(clients.get(count++ % clients.size()), args[topic + 1], kind);
                String label = topic + " " + kind;
                threads.add(new Thread(() -> produce(producer, label, kind.equals("keyed"))));
            }
        }
        threads.forEach(Thread::start);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        orders.readLine();
        isEnding = true;
        for (Thread thread : threads) {
            thread.join();
        }
        EVENTS.println("ended");
        orders.readLine();
        System.exit(0);
    }

    private static Producer<byte[]> producer(PulsarClient client, String topic, String kind) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).producerName("java-" + kind)
                .sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true).enableBatching(!kind.equals("single"))
                .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS)
                // Messages without a key have an order only within their partition.
                .messageRoutingMode(MessageRoutingMode.SinglePartition);
        if (kind.equals("keyed")) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        return builder.create();
    }

    private static void produce(Producer<byte[]> producer, String label, boolean isKeyed) {
        String kind = label.substring(label.indexOf(' ') + 1);
        try {
            for (int count = 0; !isEnding; count++) {
                String stream = isKeyed ? kind + "-" + count % KEYS : kind;
                int number = isKeyed ? count / KEYS : count;
                TypedMessageBuilder<byte[]> message = producer.newMessage()
                        .value((stream + "/" + number).getBytes(StandardCharsets.UTF_8));
                if (isKeyed) {
                    message.key(stream);
                }
                String text = label + " " + stream + " " + number;
                message.sendAsync().whenComplete((id, failure) -> EVENTS.println(
                        failure == null ? "receipt " + text : "failed " + text + " " + oneLine(failure)));
                if (count % BURST == BURST - 1) {
                    Thread.sleep(PAUSE_MS);
                }
            }
            producer.flush();
        } catch (PulsarClientException | InterruptedException failure) {
            EVENTS.println("failed " + label + " flush 0 " + oneLine(failure));
        }
    }

    private static void consume(PulsarClient client, String topic, int index, SubscriptionType type, int number)
            throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(type.name())
                .subscriptionType(type).consumerName("c" + number)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        String label = "received " + index + " " + type.name() + " " + number + " ";
        Thread thread = new Thread(() -> {
            while (true) {
                try {
                    Message<byte[]> message = consumer.receive(RECEIVE_MS, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        EVENTS.println(label + new String(message.getData(), StandardCharsets.UTF_8).replace('/', ' '));
                        consumer.acknowledgeAsync(message);
                    }
                } catch (PulsarClientException failure) {
                    EVENTS.println("broken " + label + oneLine(failure));
                    return;
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static String oneLine(Throwable failure) {
        return failure.toString().replaceAll("\\s+", " ");
    }
}
