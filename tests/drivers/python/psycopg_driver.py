"""psycopg 3: text and binary values, pipelines, COPY, prepared statements, two-phase cursors, the asynchronous client."""
import asyncio

import psycopg
from psycopg.types.json import Jsonb

from target import DATABASE, HOST, PASSWORD, PORT, USER

LOGIN = dict(host=HOST, port=PORT, user=USER, password=PASSWORD, dbname=DATABASE, application_name="matrix")


def statements(client):
    print(client.info.parameter_status("server_encoding"), client.info.parameter_status("TimeZone"))
    print(client.execute("SELECT %s::int, %s::text, %s::bytea, %s::jsonb", (7, "é🙂", b"\0\1", Jsonb({"a": None}))).fetchone())
    for number in range(10):
        client.execute("SELECT %s::int + 1", (number,), prepare=True)
    with client.cursor(binary=True) as cursor:
        print(cursor.execute("SELECT 1.5::numeric, now() IS NULL").fetchone())
    client.commit()


def transactions(client):
    client.execute("CREATE TEMPORARY TABLE kept (id int PRIMARY KEY) ON COMMIT DROP")
    with client.transaction():
        client.execute("INSERT INTO kept VALUES (1)")
        try:
            with client.transaction():
                client.execute("INSERT INTO kept VALUES (1)")
        except psycopg.errors.UniqueViolation as error:
            print(error.sqlstate, error.diag.constraint_name)
    print(client.execute("SELECT count(*) FROM kept").fetchone())
    client.rollback()


def streams(client):
    with client.cursor(name="server_side") as cursor:
        cursor.execute("SELECT generate_series(1, 5000)")
        print(sum(row[0] for row in cursor))
    client.execute("CREATE TEMPORARY TABLE copied (id int, text text)")
    with client.cursor().copy("COPY copied FROM STDIN") as copy:
        for number in range(1000):
            copy.write_row((number, "x" * 100))
    with client.cursor().copy("COPY copied TO STDOUT") as copy:
        print(sum(len(block) for block in copy))
    with client.pipeline():
        cursors = [client.execute("SELECT %s::int", (number,)) for number in range(50)]
    print(sum(cursor.fetchone()[0] for cursor in cursors))
    client.rollback()


async def asynchronous():
    async with await psycopg.AsyncConnection.connect(**LOGIN, autocommit=True) as client:
        for number in range(3):
            print(await (await client.execute("SELECT %s::int", [number])).fetchone())
        await client.execute("LISTEN news")
        await client.execute("NOTIFY news, 'hello'")
        async for event in client.notifies():
            print(event.payload)
            break


with psycopg.connect(**LOGIN) as client:
    for step in (statements, transactions, streams):
        step(client)
asyncio.run(asynchronous())
