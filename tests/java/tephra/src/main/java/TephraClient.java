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
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.ChangeId;
import org.apache.tephra.Transaction;
import org.apache.tephra.TransactionContext;
import org.apache.tephra.TransactionManager;
import org.apache.tephra.distributed.PooledClientProvider;
import org.apache.tephra.distributed.TransactionConverterUtils;
import org.apache.tephra.distributed.TransactionServiceClient;
import org.apache.tephra.distributed.thrift.TTransactionServer;
import org.apache.tephra.persist.TransactionSnapshot;
import org.apache.tephra.snapshot.SnapshotCodecProvider;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.transport.TFramedTransport;
import org.apache.thrift.transport.TSocket;

/**
 * Tephra's own client, unmodified, driven by lines: one JSON object per line on standard input, one JSON object per
 * line back, in order. It ends when its input ends.
 *
 * <pre>
 *   {"op": "start", "port": 15165, "timeout": 30}                 bytes are hex digits
 *   {"ok": {"id": 1, "read_pointer": 0, ...}}                     or
 *   {"error": {"class": "...TransactionNotInProgressException", "message": "..."}}
 * </pre>
 *
 * <p>A transaction stays here under its id, as the server sent it last, and a context under the name that "context"
 * gives it. The op "serve" starts Tephra's own server, to compare ours with.
 */
public final class TephraClient {
  private final Map<String, TransactionServiceClient> clients = new HashMap<>();
  private final Map<Long, Transaction> transactions = new HashMap<>();
  private final Map<String, TransactionContext> contexts = new HashMap<>();
  private final Map<String, List<String>> calls = new HashMap<>();

  private TephraClient() {}

  public static void main(String[] args) throws IOException {
    TephraClient client = new TephraClient();
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    JsonParser parser = new JsonParser();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(client.answer(parser.parse(line).getAsJsonObject()));
      out.flush();
    }
    System.exit(0); // Threads of the server would keep it alive.
  }

  private JsonObject answer(JsonObject command) {
    JsonObject answer = new JsonObject();
    try {
      answer.add("ok", run(command));
    } catch (Throwable e) {
      // What the client throws is what the test asks about: it travels back by its name.
      Throwable cause = e.getClass() == RuntimeException.class && e.getCause() != null ? e.getCause() : e;
      JsonObject error = new JsonObject();
      error.addProperty("class", cause.getClass().getName());
      error.addProperty("message", String.valueOf(cause.getMessage()));
      answer.add("error", error);
    }
    return answer;
  }

  private JsonElement run(JsonObject command) throws Throwable {
    String op = command.get("op").getAsString();
    if (op.equals("serve")) {
      return new JsonPrimitive(TephraServer.start());
    }
    if (op.startsWith("old_")) {
      return old(op.substring(4), command);
    }
    if (op.startsWith("context_")) {
      return context(op.substring(8), command);
    }
    TransactionServiceClient client = client(command);
    switch (op) {
      case "start":
        return kept(has(command, "timeout") ? client.startShort(number(command, "timeout")) : client.startShort());
      case "start_long":
        return kept(client.startLong());
      case "can_commit":
        client.canCommitOrThrow(transaction(command), changes(command));
        return JsonNull.INSTANCE;
      case "commit":
        client.commitOrThrow(transaction(command));
        return JsonNull.INSTANCE;
      case "abort":
        client.abort(transaction(command));
        return JsonNull.INSTANCE;
      case "invalidate":
        return new JsonPrimitive(client.invalidate(command.get("id").getAsLong()));
      case "checkpoint":
        return kept(client.checkpoint(transaction(command)));
      case "snapshot":
        return snapshot(client);
      case "status":
        return new JsonPrimitive(client.status());
      case "reset":
        client.resetState();
        return JsonNull.INSTANCE;
      case "truncate":
        return new JsonPrimitive(client.truncateInvalidTx(ids(command)));
      case "truncate_before":
        return new JsonPrimitive(client.truncateInvalidTxBefore(command.get("before_ms").getAsLong()));
      case "invalid_size":
        return new JsonPrimitive(client.getInvalidSize());
      case "prune":
        client.pruneNow();
        return JsonNull.INSTANCE;
      default:
        throw new IllegalArgumentException("no such op: " + op);
    }
  }

  /** The calls of earlier releases, by the generated client alone. */
  private JsonElement old(String op, JsonObject command) throws Throwable {
    TSocket socket = new TSocket("127.0.0.1", number(command, "port"), 30_000);
    TFramedTransport transport = new TFramedTransport(socket);
    transport.open();
    try {
      TTransactionServer.Client client = new TTransactionServer.Client(new TBinaryProtocol(transport));
      switch (op) {
        case "start_long":
          return kept(TransactionConverterUtils.unwrap(client.startLong()));
        case "start_short":
          return kept(TransactionConverterUtils.unwrap(client.startShort()));
        case "start_timeout":
          return kept(TransactionConverterUtils.unwrap(client.startShortTimeout(number(command, "timeout"))));
        case "start_with_timeout":
          return kept(TransactionConverterUtils.unwrap(client.startShortWithTimeout(number(command, "timeout"))));
        case "start_client":
          return kept(TransactionConverterUtils.unwrap(client.startShortClientId(text(command, "client"))));
        case "can_commit":
          Set<ByteBuffer> keys = new HashSet<>();
          for (byte[] change : changes(command)) {
            keys.add(ByteBuffer.wrap(change));
          }
          return new JsonPrimitive(
              client.canCommitTx(TransactionConverterUtils.wrap(transaction(command)), keys).isValue());
        case "commit":
          return new JsonPrimitive(
              client.commitTx(TransactionConverterUtils.wrap(transaction(command))).isValue());
        default:
          throw new IllegalArgumentException("no such op: old_" + op);
      }
    } finally {
      transport.close();
    }
  }

  private JsonElement context(String op, JsonObject command) throws Throwable {
    String name = text(command, "context");
    if (op.equals("new")) {
      List<String> called = new ArrayList<>();
      TransactionContext context = new TransactionContext(client(command));
      for (JsonElement aware : command.getAsJsonArray("awares")) {
        context.addTransactionAware(new Participant(aware.getAsJsonObject(), called));
      }
      contexts.put(name, context);
      calls.put(name, called);
      return JsonNull.INSTANCE;
    }
    TransactionContext context = contexts.get(name);
    switch (op) {
      case "start":
        if (has(command, "timeout")) {
          context.start(number(command, "timeout"));
        } else {
          context.start();
        }
        return kept(context.getCurrentTransaction());
      case "checkpoint":
        context.checkpoint();
        return kept(context.getCurrentTransaction());
      case "finish":
        context.finish();
        return JsonNull.INSTANCE;
      case "abort":
        context.abort();
        return JsonNull.INSTANCE;
      case "calls":
        JsonArray called = new JsonArray();
        for (String call : calls.get(name)) {
          called.add(new JsonPrimitive(call));
        }
        calls.get(name).clear();
        return called;
      default:
        throw new IllegalArgumentException("no such op: context_" + op);
    }
  }

  private TransactionServiceClient client(JsonObject command) {
    String key = command.get("port") + " " + command.get("attempts");
    return clients.computeIfAbsent(
        key,
        k -> {
          Configuration configuration = new Configuration(false);
          configuration.set("data.tx.bind.address", "127.0.0.1");
          configuration.setInt("data.tx.bind.port", number(command, "port"));
          if (has(command, "attempts")) {
            configuration.set("data.tx.client.retry.strategy", "n-times");
            configuration.setInt("data.tx.client.retry.attempts", number(command, "attempts"));
          }
          return new TransactionServiceClient(configuration, new PooledClientProvider(configuration, null), "java");
        });
  }

  private JsonElement snapshot(TransactionServiceClient client) throws Exception {
    Configuration configuration = new Configuration(false);
    configuration.set(
        "data.tx.snapshot.codecs",
        "org.apache.tephra.snapshot.DefaultSnapshotCodec,org.apache.tephra.snapshot.SnapshotCodecV2,"
            + "org.apache.tephra.snapshot.SnapshotCodecV3,org.apache.tephra.snapshot.SnapshotCodecV4");
    TransactionSnapshot snapshot =
        new SnapshotCodecProvider(configuration).decode(client.getSnapshotInputStream());
    JsonObject told = new JsonObject();
    told.addProperty("timestamp", snapshot.getTimestamp());
    told.addProperty("read_pointer", snapshot.getReadPointer());
    told.addProperty("write_pointer", snapshot.getWritePointer());
    told.add("invalids", numbers(snapshot.getInvalid()));
    JsonObject inProgress = new JsonObject();
    for (Map.Entry<Long, TransactionManager.InProgressTx> entry : snapshot.getInProgress().entrySet()) {
      JsonObject one = new JsonObject();
      one.addProperty("expiration", entry.getValue().getExpiration());
      one.addProperty("upper_bound", entry.getValue().getVisibilityUpperBound());
      one.addProperty("type", String.valueOf(entry.getValue().getType()));
      JsonArray checkpoints = new JsonArray();
      for (long pointer : entry.getValue().getCheckpointWritePointers().toLongArray()) {
        checkpoints.add(new JsonPrimitive(pointer));
      }
      one.add("checkpoints", checkpoints);
      inProgress.add(entry.getKey().toString(), one);
    }
    told.add("in_progress", inProgress);
    told.add("committing", changeSets(snapshot.getCommittingChangeSets()));
    told.add("committed", changeSets(snapshot.getCommittedChangeSets()));
    return told;
  }

  private static JsonObject changeSets(Map<Long, Set<ChangeId>> sets) {
    JsonObject told = new JsonObject();
    for (Map.Entry<Long, Set<ChangeId>> entry : sets.entrySet()) {
      List<String> keys = new ArrayList<>();
      for (ChangeId change : entry.getValue()) {
        keys.add(Hex.of(change.getKey()));
      }
      keys.sort(null);
      JsonArray listed = new JsonArray();
      for (String key : keys) {
        listed.add(new JsonPrimitive(key));
      }
      told.add(entry.getKey().toString(), listed);
    }
    return told;
  }

  private JsonElement kept(Transaction transaction) {
    transactions.put(transaction.getTransactionId(), transaction);
    JsonObject told = new JsonObject();
    told.addProperty("id", transaction.getTransactionId());
    told.addProperty("read_pointer", transaction.getReadPointer());
    told.addProperty("write_pointer", transaction.getWritePointer());
    told.add("invalids", numbers(transaction.getInvalids()));
    told.add("in_progress", numbers(transaction.getInProgress()));
    told.add("checkpoints", numbers(transaction.getCheckpointWritePointers()));
    told.addProperty("first_short", transaction.getFirstShortInProgress());
    told.addProperty("type", transaction.getType().toString());
    told.addProperty("visibility", transaction.getVisibilityLevel().toString());
    return told;
  }

  private Transaction transaction(JsonObject command) {
    return transactions.get(command.get("id").getAsLong());
  }

  private static Collection<byte[]> changes(JsonObject command) {
    List<byte[]> changes = new ArrayList<>();
    for (JsonElement change : command.getAsJsonArray("changes")) {
      changes.add(Hex.bytes(change.getAsString()));
    }
    return changes;
  }

  private static Set<Long> ids(JsonObject command) {
    Set<Long> ids = new HashSet<>();
    for (JsonElement id : command.getAsJsonArray("ids")) {
      ids.add(id.getAsLong());
    }
    return ids;
  }

  private static JsonArray numbers(long[] pointers) {
    JsonArray told = new JsonArray();
    for (long pointer : pointers) {
      told.add(new JsonPrimitive(pointer));
    }
    return told;
  }

  private static JsonArray numbers(Collection<Long> pointers) {
    JsonArray told = new JsonArray();
    for (long pointer : pointers) {
      told.add(new JsonPrimitive(pointer));
    }
    return told;
  }

  private static boolean has(JsonObject command, String name) {
    return command.has(name) && !command.get(name).isJsonNull();
  }

  private static int number(JsonObject command, String name) {
    return command.get(name).getAsInt();
  }

  private static String text(JsonObject command, String name) {
    return command.get(name).getAsString();
  }
}
