import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.PositionInfo;
import org.apache.pulsar.broker.transaction.buffer.metadata.TransactionBufferSnapshot;
import org.apache.pulsar.client.api.RawMessage;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.impl.RawMessageImpl;
import org.apache.pulsar.common.api.proto.MessageIdData;

/** Formats of Java brokers for tests, in hexadecimal. Each group of arguments is a command; a result is a line that begins with "=".
 *
 *  write-compacted LEDGER ENTRY TEXT   encode an entry of a compacted ledger
 *  read-compacted HEX                  print position and text of one
 *  read-snapshot HEX                   print the fields of a snapshot of transactions
 *  read-cursor HEX                     print the fields of the document of a cursor
 *  write-position LEDGER ENTRY NAME N  encode an entry of a cursor ledger with one property
 */
public class PulsarFormats {
    public static void main(String[] words) throws Exception {
        for (int i = 0; i < words.length;) {
            String result;
            switch (words[i]) {
                case "write-compacted" -> {
                    MessageIdData id = new MessageIdData().setLedgerId(Long.parseLong(words[i + 1]));
                    id.setEntryId(Long.parseLong(words[i + 2])).setPartition(-1);
                    byte[] text = words[i + 3].getBytes(StandardCharsets.UTF_8);
                    result = ByteBufUtil.hexDump(new RawMessageImpl(id, Unpooled.wrappedBuffer(text)).serialize());
                    i += 4;
                }
                case "read-compacted" -> {
                    RawMessage message = RawMessageImpl.deserializeFrom(Unpooled.wrappedBuffer(bytes(words[i + 1])));
                    MessageIdData id = message.getMessageIdData();
                    result = id.getLedgerId() + ":" + id.getEntryId() + " "
                            + message.getHeadersAndPayload().toString(StandardCharsets.UTF_8);
                    i += 2;
                }
                case "read-snapshot" -> {
                    TransactionBufferSnapshot found =
                            Schema.AVRO(TransactionBufferSnapshot.class).decode(bytes(words[i + 1]));
                    result = found.getTopicName() + " " + found.getMaxReadPositionLedgerId() + ":"
                            + found.getMaxReadPositionEntryId() + " " + found.getAborts().size();
                    i += 2;
                }
                case "read-cursor" -> {
                    ManagedCursorInfo found = new ManagedCursorInfo();
                    found.parseFrom(bytes(words[i + 1]));
                    StringBuilder told = new StringBuilder();
                    told.append(found.getCursorsLedgerId() + " " + found.getMarkDeleteLedgerId() + ":");
                    told.append(found.getMarkDeleteEntryId());
                    for (int n = 0; n < found.getPropertiesCount(); n++) {
                        told.append(" " + found.getPropertyAt(n).getName() + "=" + found.getPropertyAt(n).getValue());
                    }
                    result = told.toString();
                    i += 2;
                }
                case "write-position" -> {
                    PositionInfo info = new PositionInfo();
                    info.setLedgerId(Long.parseLong(words[i + 1])).setEntryId(Long.parseLong(words[i + 2]));
                    info.addProperty().setName(words[i + 3]).setValue(Long.parseLong(words[i + 4]));
                    result = HexFormat.of().formatHex(info.toByteArray());
                    i += 5;
                }
                default -> throw new IllegalArgumentException(words[i]);
            }
            System.out.println("=" + result);
        }
    }

    private static byte[] bytes(String text) {
        return HexFormat.of().parseHex(text);
    }
}
