import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** Sets the counter of sequential children of nodes, in the data of a ZooKeeper server that does not run.
 *  Arguments: the directory of the data, then PATH and NUMBER of each node. */
public class SetCounter {
    public static void main(String[] a) throws Exception {
        File directory = new File(a[0]);
        FileTxnSnapLog log = new FileTxnSnapLog(directory, directory);
        DataTree tree = new DataTree();
        ConcurrentHashMap<Long, Integer> sessions = new ConcurrentHashMap<>();
        log.restore(tree, sessions, (header, record, digest) -> { });
        for (int i = 1; i < a.length; i += 2) tree.setCversionPzxid(a[i], Integer.parseInt(a[i + 1]), tree.lastProcessedZxid);
        log.save(tree, sessions, true);
        log.close();
    }
}
