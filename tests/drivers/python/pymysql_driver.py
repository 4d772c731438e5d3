"""PyMySQL: text protocol, unbuffered cursors, several statements at once, LOAD DATA."""
import os
import tempfile

import pymysql
import pymysql.cursors

from target import DATABASE, HOST, PASSWORD, PORT, USER

LOGIN = dict(host=HOST, port=PORT, user=USER, password=PASSWORD, database=DATABASE, charset="utf8mb4")
for turn in range(2):
    client = pymysql.connect(**LOGIN, local_infile=True, init_command="SET time_zone = '+09:00'")
    with client.cursor() as cursor:
        cursor.execute("SELECT %s + 1, %s, @@time_zone, @@autocommit", (41, "é🙂"))
        print(cursor.fetchone())
        cursor.execute("CREATE TEMPORARY TABLE kept (id INT PRIMARY KEY, text TEXT)")
        cursor.executemany("INSERT INTO kept VALUES (%s, %s)", [(number, "x") for number in range(100)])
        client.commit()
        cursor.execute("INSERT INTO kept VALUES (1000, 'y')")
        client.rollback()
        cursor.execute("SELECT COUNT(*) FROM kept")
        print(cursor.fetchone())
        try:
            cursor.execute("INSERT INTO kept VALUES (1, 'again')")
        except pymysql.IntegrityError as error:
            print(error.args)
    with client.cursor(pymysql.cursors.SSDictCursor) as cursor:
        cursor.execute("SELECT id FROM kept ORDER BY id")
        print(sum(row["id"] for row in cursor))
    with tempfile.NamedTemporaryFile("w") as file, client.cursor() as cursor:
        file.write("".join(f"{number}\tz\n" for number in range(2000, 2100)))
        file.flush()
        print(cursor.execute(f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE kept"))
    client.ping()
    client.close()
