import java.util.Enumeration;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.pulsar.client.api.RawMessage;
import org.apache.pulsar.client.impl.RawMessageImpl;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/** A topic as the classes of a Java broker open it, take it over and leave it when they are killed. Arguments: the address of
 *  ZooKeeper, the name of the managed ledger, a producer name, and a sequence id. A result is a line that begins with "=".
 *
 *  Prints the properties of the cursors __compaction and pulsar.dedup, and the positions in the compacted ledger. Then
 *  adds the last of these messages again, compacts to its first occurrence, stores the sequence id, and ends without closing
 *  anything.
 */
public class PulsarTopic {
    private static final byte[] NO_PASSWORD = new byte[0];

    public static void main(String[] words) {
        try {
            takeOver(words);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void takeOver(String[] words) throws Exception {
        MetadataStoreExtended store =
                MetadataStoreExtended.create("zk:" + words[0], MetadataStoreConfig.builder().build());
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("metadata-store:zk:" + words[0]);
        ManagedLedgerFactoryImpl factory = new ManagedLedgerFactoryImpl(store, conf);
        ManagedLedgerConfig config = new ManagedLedgerConfig();
        config.setEnsembleSize(2).setWriteQuorumSize(2).setAckQuorumSize(2).setPassword("");
        ManagedLedger topic = factory.open(words[1], config);
        ManagedCursor compaction = topic.openCursor("__compaction");
        ManagedCursor deduplication = topic.openCursor("pulsar.dedup");
        for (ManagedCursor cursor : new ManagedCursor[] {compaction, deduplication}) {
            Map<String, Long> properties = new TreeMap<>(cursor.getProperties());
            System.out.println("=" + properties);
        }
        BookKeeper client = factory.getBookKeeper().get();
        long ledgerId = compaction.getProperties().get("CompactedTopicLedger");
        LedgerHandle view = client.openLedgerNoRecovery(ledgerId, DigestType.CRC32, NO_PASSWORD);
        byte[] last = null;
        byte[] payload = null;
        Enumeration<LedgerEntry> entries = view.readEntries(0, view.getLastAddConfirmed());
        while (entries.hasMoreElements()) {
            RawMessage message = RawMessageImpl.deserializeFrom(entries.nextElement().getEntryBuffer());
            System.out.println("=" + message.getMessageIdData().getLedgerId() + ":" + message.getMessageIdData().getEntryId());
            last = new byte[message.serialize().readableBytes()];
            message.serialize().getBytes(0, last);
            payload = new byte[message.getHeadersAndPayload().readableBytes()];
            message.getHeadersAndPayload().getBytes(message.getHeadersAndPayload().readerIndex(), payload);
        }
        LedgerHandle next = client.createLedger(2, 2, 2, DigestType.CRC32, NO_PASSWORD);
        next.addEntry(last);
        next.close();
        Position added = topic.addEntry(payload);
        compaction.markDelete(added, Map.of("CompactedTopicLedger", next.getId()));
        client.deleteLedger(ledgerId);
        deduplication.markDelete(added, Map.of(words[2], Long.parseLong(words[3])));
        System.out.println("=" + next.getId());
    }
}
