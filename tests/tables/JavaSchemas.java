import com.google.protobuf.Timestamp;
import java.sql.Time;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/** Writes a topic of each schema of the Java client, or reads what somebody else has written with them. */
public class JavaSchemas {
    public enum Colour { RED, BLUE }

    public static class Item {
        public String sku;
        public int count;
    }

    public static class Order {
        public long id;
        public String name;
        public Colour colour;
        public Item item;
        public List<Item> items;
        public Map<String, Double> prices;
        public byte[] raw;
        public Boolean ok;
    }

    static Order order() {
        Order order = new Order();
        order.id = 1L << 40;
        order.name = "\u00e9\n";
        order.colour = Colour.BLUE;
        order.item = new Item();
        order.item.sku = "x";
        order.item.count = 3;
        order.items = List.of(order.item);
        order.prices = Map.of("k", 1.5);
        order.raw = new byte[] {-1, 0};
        return order;
    }

    static String shown(Order order) {
        return order.id + " " + order.name + " " + order.colour + " " + order.item.sku + " " + order.items.get(0).count
            + " " + new TreeMap<>(order.prices) + " " + order.raw[0] + " " + order.ok;
    }

    static PulsarClient client;
    static String prefix;

    @SafeVarargs
    static <T> void write(String name, Schema<T> schema, T... values) throws Exception {
        try (Producer<T> producer = client.newProducer(schema).topic(prefix + name).create()) {
            for (T value : values) {
                producer.send(value);
            }
        }
    }

    static <T> T read(String name, Schema<T> schema) throws Exception {
        try (Consumer<T> consumer = client.newConsumer(schema).topic(prefix + name).subscriptionName("java")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Message<T> message = consumer.receive(10, TimeUnit.SECONDS);
            return message.getValue();
        }
    }

    static void writeAll() throws Exception {
        write("BOOLEAN", Schema.BOOL, true);
        write("INT8", Schema.INT8, (byte) -1);
        write("INT16", Schema.INT16, (short) -2);
        write("INT32", Schema.INT32, -3);
        write("INT64", Schema.INT64, Long.MIN_VALUE);
        write("FLOAT", Schema.FLOAT, 0.5f);
        write("DOUBLE", Schema.DOUBLE, 0.1);
        write("STRING", Schema.STRING, "\u00e9");
        write("DATE", Schema.DATE, new Date(-1));
        write("TIME", Schema.TIME, new Time(1_000_000_000_005L));
        write("TIMESTAMP", Schema.TIMESTAMP, new java.sql.Timestamp(1_000_000_000_005L));
        write("INSTANT", Schema.INSTANT, Instant.ofEpochSecond(1_000_000_000, 5_000_999));
        write("LOCAL_DATE", Schema.LOCAL_DATE, LocalDate.of(2001, 9, 9));
        write("LOCAL_TIME", Schema.LOCAL_TIME, LocalTime.ofNanoOfDay(86_399_999_999_999L));
        write("LOCAL_DATE_TIME", Schema.LOCAL_DATE_TIME, LocalDateTime.of(2001, 9, 9, 1, 46, 40, 5_000_999));
        write("AVRO", Schema.AVRO(Order.class), order());
        write("JSON", Schema.JSON(Order.class), order());
        write("PROTOBUF", Schema.PROTOBUF(Timestamp.class), Timestamp.newBuilder().setSeconds(7).build());
        write("PROTOBUF_NATIVE", Schema.PROTOBUF_NATIVE(Timestamp.class), Timestamp.newBuilder().setSeconds(7).build());
        for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
            write("KEY_VALUE-" + encoding, Schema.KeyValue(Schema.STRING, Schema.AVRO(Item.class), encoding),
                new KeyValue<>("k", order().item), new KeyValue<>("gone", null));
        }
    }

    static void readAll() throws Exception {
        System.out.println("INT32=" + read("INT32", Schema.INT32));
        System.out.println("STRING=" + read("STRING", Schema.STRING));
        System.out.println("INSTANT=" + read("INSTANT", Schema.INSTANT));
        System.out.println("LOCAL_DATE_TIME=" + read("LOCAL_DATE_TIME", Schema.LOCAL_DATE_TIME));
        System.out.println("AVRO=" + shown(read("AVRO", Schema.AVRO(Order.class))).replace("\n", "|"));
        System.out.println("JSON=" + shown(read("JSON", Schema.JSON(Order.class))).replace("\n", "|"));
        for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
            KeyValue<String, Item> pair =
                read("KEY_VALUE-" + encoding, Schema.KeyValue(Schema.STRING, Schema.AVRO(Item.class), encoding));
            System.out.println("KEY_VALUE-" + encoding + "=" + pair.getKey() + " " + pair.getValue().sku);
        }
    }

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        prefix = arguments[1];
        if (arguments[2].equals("write")) {
            writeAll();
        } else {
            readAll();
        }
        client.close();
        System.exit(0);
    }
}
