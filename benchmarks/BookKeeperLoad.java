import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** CPU time of BookKeeper's Java client per entry. Arguments: address of the metadata, seconds, E, W, A, outstanding adds...
 *  Each load runs twice as long before it is measured, so that its code is compiled. Lines: "=NAME MICROSECONDS ENTRIES_PER_S".
 */
public class BookKeeperLoad {
    static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    static final byte[] PAYLOAD = new byte[1024];

    interface Load {
        long run(double seconds) throws Exception;
    }

    public static void main(String[] a) throws Exception {
        new java.util.Random(1).nextBytes(PAYLOAD);
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(a[0]);
        conf.setUseV2WireProtocol(true);
        conf.setBatchReadEnabled(true);
        conf.setThrottleValue(0); // as Pulsar does; the default is 5,000 requests per second
        BookKeeper client = new BookKeeper(conf);
        double seconds = Double.parseDouble(a[1]);
        int e = Integer.parseInt(a[2]), w = Integer.parseInt(a[3]), q = Integer.parseInt(a[4]);
        LedgerHandle ledger = client.createLedger(e, w, q, DigestType.CRC32C, new byte[0]);
        for (int i = 5; i < a.length; i++) {
            int outstanding = Integer.parseInt(a[i]);
            measure("add " + outstanding, seconds, each -> add(ledger, outstanding, each));
        }
        ledger.close();
        LedgerHandle reader = client.openLedger(ledger.getId(), DigestType.CRC32C, new byte[0]);
        measure("read 1", seconds, each -> read(reader, 1, each, false));
        measure("read 100", seconds, each -> read(reader, 100, each, false));
        if (e == w) measure("batch read 100", seconds, each -> read(reader, 100, each, true));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void measure(String name, double seconds, Load load) throws Exception {
        load.run(2 * seconds);
        long cpu = SYSTEM.getProcessCpuTime(), started = System.nanoTime();
        long count = load.run(seconds);
        double us = (SYSTEM.getProcessCpuTime() - cpu) / 1e3 / count;
        System.out.printf("=%s %.1f %.0f%n", name, us, count * 1e9 / (System.nanoTime() - started));
    }

    static long add(LedgerHandle ledger, int outstanding, double seconds) throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        AtomicInteger count = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(outstanding);
        for (int i = 0; i < outstanding; i++) addNext(ledger, end, count, done);
        done.await();
        return count.get();
    }

    static void addNext(LedgerHandle ledger, long end, AtomicInteger count, CountDownLatch done) {
        ledger.asyncAddEntry(PAYLOAD, (code, handle, entryId, context) -> {
            if (code != 0) throw new IllegalStateException("code " + code);
            count.incrementAndGet();
            if (System.nanoTime() < end) addNext(ledger, end, count, done);
            else done.countDown();
        }, null);
    }

    static long read(LedgerHandle ledger, int size, double seconds, boolean batch) throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9), count = 0, last = ledger.getLastAddConfirmed();
        while (System.nanoTime() < end) {
            long first = count % Math.max(1, last - size);
            var entries = batch ? ledger.batchReadEntries(first, size, 1 << 20) : ledger.readEntries(first, first + size - 1);
            while (entries.hasMoreElements()) {
                entries.nextElement().getEntry();
                count++;
            }
        }
        return count;
    }
}
