"""mysqlclient: MariaDB's C library, as Django uses it."""
import MySQLdb
import MySQLdb.cursors

from target import DATABASE, HOST, PASSWORD, PORT, USER

for turn in range(2):
    client = MySQLdb.connect(host=HOST, port=PORT, user=USER, password=PASSWORD, database=DATABASE, charset="utf8mb4")
    cursor = client.cursor()
    cursor.execute("SELECT %s, %s", (2**40, "é🙂"))
    print(cursor.fetchall(), client.get_server_info().split("-")[1])
    cursor.execute("CREATE TEMPORARY TABLE kept (id INT AUTO_INCREMENT PRIMARY KEY, data BLOB)")
    cursor.execute("INSERT INTO kept (data) VALUES (%s)", (bytes(range(256)),))
    print(cursor.lastrowid)
    client.commit()
    cursor.execute("SELECT data FROM kept")
    print(cursor.fetchone()[0] == bytes(range(256)))
    try:
        cursor.execute("SELECT nothing FROM nowhere")
    except MySQLdb.ProgrammingError as error:
        print(error.args[0])
    stream = client.cursor(MySQLdb.cursors.SSCursor)
    stream.execute("SELECT seq FROM seq_1_to_10000")
    print(sum(row[0] for row in stream))
    stream.close()
    cursor.callproc("twice", (21,))
    print(cursor.fetchall())
    cursor.close()
    client.close()
