import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/** Sends and receives for some seconds with tokens of an identity provider, and lists the tenants. */
public class JavaOAuth2 {
    private static final String PLUGIN = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2";

    /** Arguments: service URL, HTTP URL, topic, parameters of the authentication, milliseconds. */
    public static void main(String[] args) throws Exception {
        try (PulsarAdmin admin =
                PulsarAdmin.builder().serviceHttpUrl(args[1]).authentication(PLUGIN, args[3]).build()) {
            System.out.println("tenants " + String.join(",", admin.tenants().getTenants()));
        }
        int count = 0;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).authentication(PLUGIN, args[3]).build();
                Consumer<String> consumer =
                        client.newConsumer(Schema.STRING).topic(args[2]).subscriptionName("s").subscribe();
                Producer<String> producer = client.newProducer(Schema.STRING).topic(args[2]).create()) {
            long ends = System.currentTimeMillis() + Long.parseLong(args[4]);
            while (System.currentTimeMillis() < ends) {
                producer.send("message " + count);
                Message<String> message = consumer.receive(10, TimeUnit.SECONDS);
                if (message == null || !message.getValue().equals("message " + count)) {
                    throw new IllegalStateException("expected message " + count);
                }
                consumer.acknowledge(message);
                count++;
                Thread.sleep(100);
            }
        }
        System.out.println("messages " + count);
        System.exit(0);
    }
}
