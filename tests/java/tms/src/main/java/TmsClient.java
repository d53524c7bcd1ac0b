import co.cask.cdap.api.dataset.lib.CloseableIterator;
import co.cask.cdap.messaging.MessageFetcher;
import co.cask.cdap.messaging.MessagingService;
import co.cask.cdap.messaging.RollbackDetail;
import co.cask.cdap.messaging.StoreRequest;
import co.cask.cdap.messaging.TopicMetadata;
import co.cask.cdap.messaging.client.ClientMessagingService;
import co.cask.cdap.messaging.client.StoreRequestBuilder;
import co.cask.cdap.messaging.data.RawMessage;
import co.cask.cdap.proto.id.NamespaceId;
import co.cask.cdap.proto.id.TopicId;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.tephra.Transaction;
import org.apache.tephra.TransactionCodec;
import org.apache.twill.discovery.Discoverable;
import org.apache.twill.discovery.InMemoryDiscoveryService;

/**
 * CDAP's own messaging client, unmodified, driven by lines: one JSON object per line on standard
 * input, one JSON object per line back, in order. It ends when its input ends.
 *
 * <pre>
 *   {"op": "publish", "host": "127.0.0.1", "port": 8080, "namespace": "n", "topic": "t",
 *    "write_pointer": 7, "messages": ["6d31"]}                      bytes are hex digits
 *   {"ok": {"handle": 1, "write_pointer": 7, ...}}                  or
 *   {"error": {"class": "...TopicNotFoundException", "message": "..."}}
 * </pre>
 *
 * <p>The roll-back detail of a publish stays here under its handle, byte for byte as the server sent
 * it, until "rollback" names it.
 */
public final class TmsClient {
  private final Map<InetSocketAddress, MessagingService> services = new HashMap<>();
  private final List<RollbackDetail> details = new ArrayList<>();
  private final TransactionCodec codec = new TransactionCodec();

  private TmsClient() {}

  public static void main(String[] args) throws IOException {
    TmsClient client = new TmsClient();
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    JsonParser parser = new JsonParser();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(client.answer(parser.parse(line).getAsJsonObject()));
      out.flush();
    }
  }

  private JsonObject answer(JsonObject command) {
    JsonObject answer = new JsonObject();
    try {
      answer.add("ok", run(command));
    } catch (Exception e) {
      // What the client throws is what the test asks about: it travels back by its name.
      JsonObject error = new JsonObject();
      error.addProperty("class", e.getClass().getName());
      error.addProperty("message", String.valueOf(e.getMessage()));
      answer.add("error", error);
    }
    return answer;
  }

  private JsonElement run(JsonObject command) throws Exception {
    MessagingService service = service(command);
    switch (command.get("op").getAsString()) {
      case "create":
        service.createTopic(new TopicMetadata(topic(command), properties(command)));
        return JsonNull.INSTANCE;
      case "update":
        service.updateTopic(new TopicMetadata(topic(command), properties(command)));
        return JsonNull.INSTANCE;
      case "get":
        return map(service.getTopic(topic(command)).getProperties());
      case "list":
        return names(service.listTopics(new NamespaceId(text(command, "namespace"))));
      case "delete":
        service.deleteTopic(topic(command));
        return JsonNull.INSTANCE;
      case "publish":
        return kept(service.publish(request(command)));
      case "store":
        service.storePayload(request(command));
        return JsonNull.INSTANCE;
      case "rollback":
        service.rollback(topic(command), details.get(command.get("handle").getAsInt()));
        return JsonNull.INSTANCE;
      case "fetch":
        return fetch(service, command);
      default:
        throw new IllegalArgumentException("no such op: " + text(command, "op"));
    }
  }

  private MessagingService service(JsonObject command) {
    InetSocketAddress address =
        new InetSocketAddress(text(command, "host"), command.get("port").getAsInt());
    return services.computeIfAbsent(
        address,
        a -> {
          InMemoryDiscoveryService discovery = new InMemoryDiscoveryService();
          discovery.register(new Discoverable("messaging.service", a));
          return new ClientMessagingService(discovery);
        });
  }

  private static StoreRequest request(JsonObject command) {
    StoreRequestBuilder builder = StoreRequestBuilder.of(topic(command));
    if (has(command, "write_pointer")) {
      builder.setTransaction(command.get("write_pointer").getAsLong());
    }
    for (JsonElement message : command.getAsJsonArray("messages")) {
      builder.addPayload(unhex(message.getAsString()));
    }
    return builder.build();
  }

  private JsonElement kept(RollbackDetail detail) {
    if (detail == null) {
      return JsonNull.INSTANCE;
    }
    details.add(detail);
    JsonObject kept = new JsonObject();
    kept.addProperty("handle", details.size() - 1);
    kept.addProperty("write_pointer", detail.getTransactionWritePointer());
    kept.addProperty("start_timestamp", detail.getStartTimestamp());
    kept.addProperty("start_sequence_id", detail.getStartSequenceId());
    kept.addProperty("end_timestamp", detail.getEndTimestamp());
    kept.addProperty("end_sequence_id", detail.getEndSequenceId());
    return kept;
  }

  private JsonElement fetch(MessagingService service, JsonObject command) throws Exception {
    MessageFetcher fetcher = service.prepareFetch(topic(command));
    if (has(command, "start_id")) {
      fetcher.setStartMessage(
          unhex(text(command, "start_id")), command.get("inclusive").getAsBoolean());
    }
    if (has(command, "start_time")) {
      fetcher.setStartTime(command.get("start_time").getAsLong());
    }
    if (has(command, "limit")) {
      fetcher.setLimit(command.get("limit").getAsInt());
    }
    if (has(command, "transaction")) {
      fetcher.setTransaction(transaction(command.get("transaction")));
    }
    int take = has(command, "take") ? command.get("take").getAsInt() : Integer.MAX_VALUE;
    JsonArray messages = new JsonArray();
    try (CloseableIterator<RawMessage> found = fetcher.fetch()) {
      while (messages.size() < take && found.hasNext()) {
        RawMessage message = found.next();
        JsonArray pair = new JsonArray();
        pair.add(new JsonPrimitive(hex(message.getId())));
        pair.add(new JsonPrimitive(hex(message.getPayload())));
        messages.add(pair);
      }
    }
    return messages;
  }

  /** A transaction as the hex of its encoding, or as its fields. */
  private Transaction transaction(JsonElement given) throws IOException {
    if (given.isJsonPrimitive()) {
      return codec.decode(unhex(given.getAsString()));
    }
    JsonObject fields = given.getAsJsonObject();
    return new Transaction(
        fields.get("read_pointer").getAsLong(),
        fields.get("transaction_id").getAsLong(),
        longs(fields.getAsJsonArray("invalids")),
        longs(fields.getAsJsonArray("in_progress")),
        fields.get("first_short").getAsLong());
  }

  private static long[] longs(JsonArray given) {
    long[] values = new long[given.size()];
    for (int i = 0; i < values.length; i++) {
      values[i] = given.get(i).getAsLong();
    }
    return values;
  }

  private static TopicId topic(JsonObject command) {
    return new TopicId(text(command, "namespace"), text(command, "topic"));
  }

  private static Map<String, String> properties(JsonObject command) {
    Map<String, String> properties = new HashMap<>();
    for (Map.Entry<String, JsonElement> entry :
        command.getAsJsonObject("properties").entrySet()) {
      properties.put(entry.getKey(), entry.getValue().getAsString());
    }
    return properties;
  }

  private static JsonObject map(Map<String, String> properties) {
    JsonObject object = new JsonObject();
    properties.forEach(object::addProperty);
    return object;
  }

  private static JsonArray names(List<TopicId> topics) {
    JsonArray names = new JsonArray();
    topics.forEach(topic -> names.add(new JsonPrimitive(topic.getTopic())));
    return names;
  }

  private static boolean has(JsonObject command, String field) {
    return command.has(field) && !command.get(field).isJsonNull();
  }

  private static String text(JsonObject command, String field) {
    return command.get(field).getAsString();
  }

  private static byte[] unhex(String digits) {
    byte[] bytes = new byte[digits.length() / 2];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) Integer.parseInt(digits.substring(2 * i, 2 * i + 2), 16);
    }
    return bytes;
  }

  private static String hex(byte[] bytes) {
    StringBuilder digits = new StringBuilder(bytes.length * 2);
    for (byte b : bytes) {
      digits.append(Character.forDigit((b >> 4) & 15, 16)).append(Character.forDigit(b & 15, 16));
    }
    return digits.toString();
  }
}
