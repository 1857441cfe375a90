import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/** pulsar-admin for many commands in one JVM: arguments in base64 on stdin, a line a command; exit, output and errors back. */
public class AdminLines {
    static class Tool extends PulsarAdminTool {
        Tool(Properties properties) throws Exception {
            super(properties);
        }

        boolean call(String[] arguments) {
            return run(arguments);
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream replies = System.out;
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", args[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] arguments = line.split(" ");
            for (int index = 0; index < arguments.length; index++) {
                arguments[index] = new String(Base64.getDecoder().decode(arguments[index]), StandardCharsets.UTF_8);
            }
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            boolean isDone = new Tool(properties).call(arguments);
            Base64.Encoder encoder = Base64.getEncoder();
            replies.println((isDone ? "0" : "1") + " " + encoder.encodeToString(output.toByteArray()) + " "
                    + encoder.encodeToString(errors.toByteArray()));
            replies.flush();
        }
        System.exit(0);  // Threads of the tool's HTTP clients would keep it alive.
    }
}
