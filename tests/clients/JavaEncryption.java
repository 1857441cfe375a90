import java.io.File;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.impl.DefaultCryptoKeyReader;
import org.apache.pulsar.client.impl.crypto.MessageCryptoBc;
import org.apache.pulsar.common.api.proto.MessageMetadata;

/** Encrypts and decrypts with keys of one directory, NAME.public.pem and NAME.private.pem. */
public class JavaEncryption {
    private static final byte[] PAYLOAD = "secret".getBytes();

    /**
     * Arguments: exchange, service URL, prefix of topics, directory, number of messages, names of keys: for each key, prints the
     * messages of the topic to-java-NAME, and sends as many to the topic from-java-NAME. Or: vectors, directory, names of keys:
     * prints name, encrypted data key, nonce and payload.
     */
    public static void main(String[] args) throws Exception {
        if (args[0].equals("vectors")) {
            for (int index = 2; index < args.length; index++) {
                printVector(args[index], keys(args[1], args[index]));
            }
        } else {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(args[1]).build()) {
                for (int index = 5; index < args.length; index++) {
                    exchange(client, args[2], args[index], keys(args[3], args[index]), Integer.parseInt(args[4]));
                }
            }
        }
        System.exit(0);
    }

    private static CryptoKeyReader keys(String directory, String name) {
        String path = new File(directory, name).getAbsoluteFile().toURI().toString();
        return DefaultCryptoKeyReader.builder().publicKey(name, path + ".public.pem")
                .privateKey(name, path + ".private.pem").build();
    }

    private static void exchange(PulsarClient client, String prefix, String name, CryptoKeyReader keys, int count)
            throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(prefix + "to-java-" + name).subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).cryptoKeyReader(keys).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(prefix + "from-java-" + name).addEncryptionKey(name)
                        .cryptoKeyReader(keys).create()) {
            for (int number = 0; number < count; number++) {
                Message<byte[]> message = consumer.receive(15, TimeUnit.SECONDS);
                System.out.println(name + " " + (message == null ? "nothing" : new String(message.getData())));
                producer.send(("java " + number).getBytes());
            }
        }
    }

    private static void printVector(String name, CryptoKeyReader keys) throws Exception {
        MessageCryptoBc crypto = new MessageCryptoBc("vectors", true);
        MessageMetadata metadata = new MessageMetadata();
        ByteBuffer out = ByteBuffer.allocate(100);
        crypto.encrypt(Set.of(name), keys, () -> metadata, ByteBuffer.wrap(PAYLOAD), out);
        byte[] payload = new byte[out.remaining()];
        out.get(payload);
        HexFormat hex = HexFormat.of();
        System.out.println(String.join(" ", name, hex.formatHex(metadata.getEncryptionKeyAt(0).getValue()),
                hex.formatHex(metadata.getEncryptionParam()), hex.formatHex(payload)));
    }
}
