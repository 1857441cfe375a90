import java.util.Enumeration;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** The Java client for tests. Its results are lines that begin with "=".
 *
 *  write COUNT E W A DIGEST PASSWORD close|open   create a ledger of entries "java N"; print its id
 *  read LEDGER DIGEST PASSWORD                    recover the ledger; print its length in bytes and each entry
 */
public class LedgerExchange {
    public static void main(String[] a) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(a[0]);
        conf.setUseV2WireProtocol(true);
        BookKeeper client = new BookKeeper(conf);
        if (a[1].equals("write")) {
            LedgerHandle ledger = client.createLedger(Integer.parseInt(a[3]), Integer.parseInt(a[4]), Integer.parseInt(a[5]),
                    DigestType.valueOf(a[6]), a[7].getBytes());
            for (int i = 0; i < Integer.parseInt(a[2]); i++) ledger.addEntry(("java " + i).getBytes());
            System.out.println("=" + ledger.getId());
            System.out.flush();
            if (a[8].equals("close")) ledger.close();
            else Runtime.getRuntime().halt(0);
        } else {
            LedgerHandle ledger = client.openLedger(Long.parseLong(a[2]), DigestType.valueOf(a[3]), a[4].getBytes());
            System.out.println("=" + ledger.getLength());
            if (ledger.getLastAddConfirmed() >= 0) {
                Enumeration<LedgerEntry> entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
                while (entries.hasMoreElements()) System.out.println("=" + new String(entries.nextElement().getEntry()));
            }
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
