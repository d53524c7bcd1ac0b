import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.master.HMaster;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;

/**
 * ZooKeeper, an HBase master with its region server, and both Thrift gateways in one JVM, for tests:
 * a third of the memory and half of the start time of one process each.
 *
 * <p>usage: AllInOne THRIFT1_PORT THRIFT2_PORT, with hbase-site.xml first on the class path and
 * hbase.cluster.distributed=false in it. The gateways are started when the master answers, so an
 * open port is one that serves.
 */
public final class AllInOne {
  private AllInOne() {}

  public static void main(String[] args) throws Exception {
    daemon("gateways", () -> startGateways(args[0], args[1]));
    HMaster.main(new String[] {"start"});
  }

  private static void startGateways(String thrift1Port, String thrift2Port) throws Exception {
    Configuration conf = HBaseConfiguration.create();
    awaitMaster(conf);
    gateway("thrift1", new org.apache.hadoop.hbase.thrift.ThriftServer(conf), thrift1Port);
    gateway("thrift2", new org.apache.hadoop.hbase.thrift2.ThriftServer(conf), thrift2Port);
  }

  private static void awaitMaster(Configuration conf) throws InterruptedException {
    while (true) {
      try (Connection connection = ConnectionFactory.createConnection(conf);
          Admin admin = connection.getAdmin()) {
        admin.listTableNames();
        return;
      } catch (java.io.IOException notYet) {
        Thread.sleep(50); // The launcher bounds the whole start; here one only asks again.
      }
    }
  }

  private static void gateway(String name, Tool server, String port) {
    String[] args = {"start", "-p", port, "-b", "127.0.0.1", "--infoport", "-1"};
    daemon(name, () -> ToolRunner.run(server, args));
  }

  private interface Work {
    void run() throws Exception;
  }

  /** A gateway that ends, ends the JVM: half a server would answer half of the tests. */
  private static void daemon(String name, Work work) {
    Thread thread =
        new Thread(
            () -> {
              try {
                work.run();
              } catch (Throwable e) {
                e.printStackTrace();
                Runtime.getRuntime().halt(3);
              }
            },
            name);
    thread.setDaemon(true);
    thread.start();
  }
}
