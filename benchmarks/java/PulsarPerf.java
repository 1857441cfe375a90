import java.util.Arrays;
import org.apache.pulsar.testclient.PerformanceConsumer;
import org.apache.pulsar.testclient.PerformanceProducer;
import picocli.CommandLine;

/** The commands produce and consume of pulsar-perf. The tool's own main class needs the classes of a broker. */
public class PulsarPerf {
    public static void main(String[] arguments) {
        Object command = arguments[0].equals("produce") ? new PerformanceProducer() : new PerformanceConsumer();
        CommandLine line = new CommandLine(command).setCaseInsensitiveEnumValuesAllowed(true);
        System.exit(line.execute(Arrays.copyOfRange(arguments, 1, arguments.length)));
    }
}
