import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Enumeration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerIdGenerator;

/** The Java client for tests. Arguments: the address of the metadata, and settings KEY=VALUE. It reads commands from its
 *  standard input, one a line, with tabs between the words. A result is lines that begin with "=", and a line ".".
 *
 *  write COUNT E W A DIGEST PASSWORD close|open   create a ledger of entries "java N"; print its id
 *  ids COUNT                                      print new ledger ids, without ledgers
 *  read LEDGER DIGEST PASSWORD                    recover the ledger; print its length in bytes and each entry
 */
public class LedgerExchange {
    public static void main(String[] settings) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(settings[0]);
        conf.setUseV2WireProtocol(true);
        for (int i = 1; i < settings.length; i++) {
            String[] pair = settings[i].split("=", 2);
            conf.setProperty(pair[0], pair[1]);
        }
        BookKeeper client = new BookKeeper(conf);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            try {
                run(client, line.split("\t", -1));
            } catch (Exception error) {
                error.printStackTrace();
                System.out.println("!" + error);
            }
            System.out.println(".");
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static void run(BookKeeper client, String[] a) throws Exception {
        if (a[0].equals("write")) {
            LedgerHandle ledger = client.createLedger(Integer.parseInt(a[2]), Integer.parseInt(a[3]), Integer.parseInt(a[4]),
                    DigestType.valueOf(a[5]), a[6].getBytes(), Map.of("application", "java".getBytes()));
            for (int i = 0; i < Integer.parseInt(a[1]); i++) ledger.addEntry(("java " + i).getBytes());
            System.out.println("=" + ledger.getId());
            if (a[7].equals("close")) ledger.close();
        } else if (a[0].equals("ids")) {
            LedgerIdGenerator ids = client.getMetadataClientDriver().getLedgerManagerFactory().newLedgerIdGenerator();
            for (int i = 0; i < Integer.parseInt(a[1]); i++) {
                CompletableFuture<Long> id = new CompletableFuture<>();
                ids.generateLedgerId((code, result) -> {
                    if (code == 0) id.complete(result);
                    else id.completeExceptionally(new Exception("code " + code));
                });
                System.out.println("=" + id.get());
            }
        } else {
            LedgerHandle ledger = client.openLedger(Long.parseLong(a[1]), DigestType.valueOf(a[2]), a[3].getBytes());
            System.out.println("=" + ledger.getLength());
            if (ledger.getLastAddConfirmed() >= 0) {
                Enumeration<LedgerEntry> entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
                while (entries.hasMoreElements()) System.out.println("=" + new String(entries.nextElement().getEntry()));
            }
        }
    }
}
