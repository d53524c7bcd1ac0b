import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.tephra.Transaction;
import org.apache.tephra.TransactionAware;

/**
 * Takes part in transactions: notes every call, has the changes that it is given, and refuses where it shall.
 *
 * <pre>  {"name": "a", "changes": ["6b"], "refuses": ["commitTx"]}  </pre>
 */
final class Participant implements TransactionAware {
  private final String name;
  private final List<byte[]> changes = new ArrayList<>();
  private final Set<String> refuses = new HashSet<>();
  private final List<String> calls;

  Participant(JsonObject told, List<String> calls) {
    this.name = told.get("name").getAsString();
    this.calls = calls;
    for (JsonElement change : told.getAsJsonArray("changes")) {
      changes.add(Hex.bytes(change.getAsString()));
    }
    if (told.has("refuses")) {
      for (JsonElement call : told.getAsJsonArray("refuses")) {
        refuses.add(call.getAsString());
      }
    }
  }

  private boolean called(String call) {
    calls.add(name + "." + call);
    return !refuses.contains(call);
  }

  @Override
  public void startTx(Transaction transaction) {
    called("startTx");
  }

  @Override
  public void updateTx(Transaction transaction) {
    called("updateTx");
  }

  @Override
  public Collection<byte[]> getTxChanges() {
    called("getTxChanges");
    return changes;
  }

  @Override
  public boolean commitTx() {
    return called("commitTx");
  }

  @Override
  public void postTxCommit() {
    called("postTxCommit");
  }

  @Override
  public boolean rollbackTx() {
    return called("rollbackTx");
  }

  @Override
  public String getTransactionAwareName() {
    return name;
  }
}
