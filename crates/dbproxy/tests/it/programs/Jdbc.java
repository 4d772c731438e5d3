import java.sql.*;

/** PostgreSQL's own driver: prepared statements that become named ones, a transaction, a batch, rows fetched some at a time, an error. */
public class Jdbc {
    public static void main(String[] arguments) throws Exception {
        String url = "jdbc:postgresql://" + arguments[0] + ":" + arguments[1] + "/postgres?prepareThreshold=2";
        for (int turn = 0; turn < 3; turn++) {
            try (Connection c = DriverManager.getConnection(url, "postgres", arguments[2])) {
                run(c, turn);
            }
        }
    }

    static void run(Connection c, int turn) throws SQLException {
        try (PreparedStatement ask = c.prepareStatement("SELECT ?::int + 1, ?::text")) {
            for (int i = 0; i < 6; i++) {
                ask.setInt(1, i);
                ask.setString(2, "text " + i);
                try (ResultSet r = ask.executeQuery()) {
                    r.next();
                    System.out.println(r.getInt(1) + " " + r.getString(2));
                }
            }
        }
        c.setAutoCommit(false);
        try (Statement s = c.createStatement()) {
            s.execute("CREATE TEMPORARY TABLE t (id int, v text) ON COMMIT DROP");
            try (PreparedStatement put = c.prepareStatement("INSERT INTO t VALUES (?, ?)")) {
                for (int i = 0; i < 300; i++) {
                    put.setInt(1, i);
                    put.setString(2, "turn " + turn);
                    put.addBatch();
                }
                put.executeBatch();
            }
            s.setFetchSize(50);
            int seen = 0;
            try (ResultSet r = s.executeQuery("SELECT id, v FROM t ORDER BY id")) {
                while (r.next()) if (r.getInt(1) == seen && r.getString(2).equals("turn " + turn)) seen++;
            }
            System.out.println(seen);
        }
        c.commit();
        try (Statement s = c.createStatement()) {
            s.execute("SELECT 1 / 0");
        } catch (SQLException error) {
            System.out.println(error.getSQLState());
        }
        c.rollback();
    }
}
