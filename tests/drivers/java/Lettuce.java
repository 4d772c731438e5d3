import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.util.ArrayList;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Lettuce: asynchronous pipelines on one connection, transactions, scripts, subscriptions. */
public class Lettuce {
    static String env(String name) {
        return System.getenv(name);
    }

    public static void main(String[] arguments) throws Exception {
        var target = RedisURI.builder().withHost(env("DB_HOST")).withPort(Integer.parseInt(env("DB_PORT"))).withDatabase(5).withClientName("matrix");
        if (!env("DB_PASSWORD").isEmpty()) target.withPassword(env("DB_PASSWORD").toCharArray());
        var client = RedisClient.create(target.build());
        try (var connection = client.connect()) {
            var commands = connection.sync();
            commands.flushdb();
            System.out.println(commands.set("text", "é🙂") + commands.get("text") + commands.clientGetname());
            var sums = new ArrayList<RedisFuture<Long>>();
            for (int number = 0; number < 100; number++) sums.add(connection.async().incrby("sum", number));
            System.out.println(sums.get(99).get(30, TimeUnit.SECONDS));
            commands.multi();
            commands.set("a", "1");
            commands.get("a");
            System.out.println(commands.exec().size());
            System.out.println((Object) commands.eval("return ARGV[1]", ScriptOutputType.VALUE, new String[0], "v"));
            try {
                commands.lpush("text", "1");
            } catch (Exception error) {
                System.out.println(error.getMessage());
            }
            subscriptions(client, commands::publish);
            commands.flushall();
        }
        client.shutdown(0, 1, TimeUnit.SECONDS);
    }

    interface Publisher {
        Long publish(String channel, String text);
    }

    static void subscriptions(RedisClient client, Publisher publisher) throws Exception {
        var heard = new CompletableFuture<String>();
        try (var listener = client.connectPubSub()) {
            listener.addListener(new RedisPubSubAdapter<String, String>() {
                @Override
                public void message(String channel, String text) {
                    heard.complete(text);
                }
            });
            listener.sync().subscribe("news");
            publisher.publish("news", "hello");
            System.out.println(heard.get(30, TimeUnit.SECONDS));
        }
    }
}
