import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.stream.IntStream;
import org.postgresql.PGConnection;

/** pgjdbc below Hikari's pool: server-prepared statements, batches, COPY, savepoints, cancellation. */
public class Hikari {
    static final String URL = "jdbc:postgresql://%s:%s/%s?ApplicationName=matrix%s".formatted(env("DB_HOST"), env("DB_PORT"), env("DB_NAME"), tls());

    static String env(String name) {
        return System.getenv(name);
    }

    /** The settings that other drivers read from the environment themselves. */
    static String tls() {
        return env("PGSSLMODE") == null ? "" : "&sslmode=%s&sslrootcert=%s".formatted(env("PGSSLMODE"), env("PGSSLROOTCERT"));
    }

    public static void main(String[] arguments) throws Exception {
        var pool = new HikariDataSource();
        pool.setJdbcUrl(URL);
        pool.setUsername(env("DB_USER"));
        pool.setPassword(env("DB_PASSWORD"));
        pool.setMaximumPoolSize(4);
        try (pool) {
            try (var client = pool.getConnection()) {
                statements(client);
                transactions(client);
                copies(client);
                cancels(client);
            }
            System.out.println(IntStream.range(0, 200).parallel().map(number -> one(pool, number)).sum());
        }
    }

    static int one(HikariDataSource pool, int number) {
        try (var client = pool.getConnection(); var query = client.prepareStatement("SELECT ?::int")) {
            query.setInt(1, number);
            try (var rows = query.executeQuery()) {
                rows.next();
                return rows.getInt(1);
            }
        } catch (SQLException error) {
            throw new IllegalStateException(error);
        }
    }

    static void statements(Connection client) throws SQLException {
        System.out.println(client.getMetaData().getDatabaseMajorVersion() + " " + client.getTransactionIsolation());
        try (var query = client.prepareStatement("SELECT ?::bigint + 1, ?::text, '2026-01-02 03:04:05Z'::timestamptz")) {
            // From the fifth execution on the driver uses a named statement, and binary values.
            for (int turn = 0; turn < 8; turn++) {
                query.setLong(1, turn);
                query.setString(2, "é🙂");
                try (var rows = query.executeQuery()) {
                    rows.next();
                    System.out.println(rows.getLong(1) + rows.getString(2) + rows.getTimestamp(3).toInstant());
                }
            }
        }
    }

    static void transactions(Connection client) throws SQLException {
        client.setAutoCommit(false);
        try (var statement = client.createStatement()) {
            statement.execute("CREATE TEMPORARY TABLE kept (id int PRIMARY KEY) ON COMMIT DROP");
            try (var insert = client.prepareStatement("INSERT INTO kept VALUES (?)")) {
                for (int number = 0; number < 50; number++) {
                    insert.setInt(1, number);
                    insert.addBatch();
                }
                System.out.println(insert.executeBatch().length);
            }
            var savepoint = client.setSavepoint();
            try {
                statement.execute("INSERT INTO kept VALUES (1)");
            } catch (SQLException error) {
                System.out.println(error.getSQLState());
                client.rollback(savepoint);
            }
            statement.setFetchSize(7);
            int sum = 0;
            try (var rows = statement.executeQuery("SELECT id FROM kept")) {
                while (rows.next()) sum += rows.getInt(1);
            }
            System.out.println(sum);
        }
        client.rollback();
        client.setAutoCommit(true);
    }

    static void copies(Connection client) throws Exception {
        try (var statement = client.createStatement()) {
            statement.execute("CREATE TEMPORARY TABLE copied (id int)");
        }
        var copies = client.unwrap(PGConnection.class).getCopyAPI();
        System.out.println(copies.copyIn("COPY copied FROM STDIN", new java.io.StringReader("1\n2\n3\n")));
    }

    static void cancels(Connection client) throws SQLException {
        try (var statement = client.createStatement()) {
            statement.setQueryTimeout(1);
            statement.execute("SELECT pg_sleep(60)");
        } catch (SQLException error) {
            System.out.println(error.getSQLState());
        }
    }
}
