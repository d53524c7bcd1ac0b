import co.cask.cdap.api.metrics.MetricsCollectionService;
import co.cask.cdap.common.conf.CConfiguration;
import co.cask.cdap.common.guice.ConfigModule;
import co.cask.cdap.common.guice.DiscoveryRuntimeModule;
import co.cask.cdap.common.metrics.NoOpMetricsCollectionService;
import co.cask.cdap.messaging.guice.MessagingServerRuntimeModule;
import co.cask.cdap.messaging.server.MessagingHttpService;
import com.google.inject.AbstractModule;
import com.google.inject.Guice;
import com.google.inject.Injector;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.twill.discovery.Discoverable;
import org.apache.twill.discovery.DiscoveryServiceClient;

/**
 * CDAP's own messaging server, unmodified, alone in a JVM: LevelDB under DATADIR, HTTP on 127.0.0.1
 * and a free port, which is written to PORTFILE (renamed into place, so never half written).
 *
 * <p>usage: TmsServer DATADIR PORTFILE [key=value ...], the pairs being CConfiguration overrides.
 */
public final class TmsServer {
  private TmsServer() {}

  public static void main(String[] args) throws Exception {
    Injector injector = injector(configuration(args));
    MessagingHttpService http = injector.getInstance(MessagingHttpService.class);
    Runtime.getRuntime().addShutdownHook(new Thread(http::stopAndWait));
    http.startAndWait();
    Discoverable found =
        injector.getInstance(DiscoveryServiceClient.class).discover("messaging.service").iterator().next();
    writePort(new File(args[1]).toPath(), found.getSocketAddress().getPort());
    Thread.currentThread().join();
  }

  private static CConfiguration configuration(String[] args) {
    CConfiguration conf = CConfiguration.create();
    conf.set("local.data.dir", new File(args[0]).getAbsolutePath());
    conf.set("messaging.http.server.bind.address", "127.0.0.1");
    for (int i = 2; i < args.length; i++) {
      int equals = args[i].indexOf('=');
      conf.set(args[i].substring(0, equals), args[i].substring(equals + 1));
    }
    return conf;
  }

  private static Injector injector(CConfiguration conf) {
    return Guice.createInjector(
        new ConfigModule(conf),
        new DiscoveryRuntimeModule().getInMemoryModules(),
        new MessagingServerRuntimeModule().getStandaloneModules(),
        new AbstractModule() {
          @Override
          protected void configure() {
            bind(MetricsCollectionService.class).toInstance(new NoOpMetricsCollectionService());
          }
        });
  }

  private static void writePort(Path portFile, int port) throws Exception {
    Path written = portFile.resolveSibling(portFile.getFileName() + ".tmp");
    Files.write(written, Integer.toString(port).getBytes(StandardCharsets.US_ASCII));
    Files.move(written, portFile, StandardCopyOption.ATOMIC_MOVE);
  }
}
