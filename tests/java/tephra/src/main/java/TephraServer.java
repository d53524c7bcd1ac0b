import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.TransactionManager;
import org.apache.tephra.distributed.TransactionServiceThriftHandler;
import org.apache.tephra.distributed.thrift.TTransactionServer;
import org.apache.tephra.rpc.ThriftRPCServer;
import org.apache.tephra.txprune.TransactionPruningService;

/** Tephra's own transaction server, which keeps nothing on disk. */
final class TephraServer {
  private TephraServer() {}

  /** Starts one, which ends with this process, and returns its port. */
  static int start() throws Exception {
    int port;
    try (ServerSocket probe = new ServerSocket()) {
      probe.bind(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0));
      port = probe.getLocalPort();
    }
    Configuration configuration = new Configuration(false);
    configuration.set(
        "data.tx.snapshot.codecs",
        "org.apache.tephra.snapshot.DefaultSnapshotCodec,org.apache.tephra.snapshot.SnapshotCodecV2,"
            + "org.apache.tephra.snapshot.SnapshotCodecV3,org.apache.tephra.snapshot.SnapshotCodecV4");
    TransactionManager manager = new TransactionManager(configuration);
    TransactionServiceThriftHandler handler =
        new TransactionServiceThriftHandler(manager, new TransactionPruningService(configuration, manager));
    ThriftRPCServer.builder(TTransactionServer.class)
        .setHost("127.0.0.1")
        .setPort(port)
        .setWorkerThreads(4)
        .build(handler)
        .startAndWait();
    return port;
  }
}
