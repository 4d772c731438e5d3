"""asyncpg: extended protocol only, binary values, a statement cache, a pool."""
import asyncio
import datetime
import decimal

import asyncpg

from target import DATABASE, HOST, PASSWORD, PORT, USER

LOGIN = dict(host=HOST, port=PORT, user=USER, password=PASSWORD, database=DATABASE)


async def values(client):
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    row = await client.fetchrow(
        "SELECT $1::int8, $2::text, $3::timestamptz, $4::numeric, $5::bytea, $6::int[], $7::text, $8::jsonb",
        2**40, "é🙂", moment, decimal.Decimal("1.50"), bytes(range(256)), [1, None, 3], None, '{"a": [1]}',
    )
    print(list(row))


async def transactions(client):
    await client.execute("CREATE TEMPORARY TABLE kept (id int PRIMARY KEY, text text)")
    async with client.transaction():
        await client.execute("INSERT INTO kept VALUES (1, 'outer')")
        try:
            async with client.transaction():
                await client.execute("INSERT INTO kept VALUES (2, 'inner')")
                raise LookupError
        except LookupError:
            pass
    print(await client.fetchval("SELECT string_agg(text, ',') FROM kept"))
    try:
        await client.execute("INSERT INTO kept VALUES (1, 'again')")
    except asyncpg.UniqueViolationError as error:
        print(error.sqlstate)


async def streams(client):
    async with client.transaction():
        print(sum([row[0] async for row in client.cursor("SELECT generate_series(1, 1000)", prefetch=50)]))
    await client.copy_records_to_table("kept", records=[(number, str(number)) for number in range(10, 1010)])
    print(await client.fetchval("SELECT count(*) FROM kept"), len(await client.fetch("SELECT generate_series(1, 100000)")))


async def notifications(client):
    heard = asyncio.get_running_loop().create_future()
    await client.add_listener("news", lambda *event: heard.set_result(event[3]))
    await client.execute("NOTIFY news, 'hello'")
    print(await asyncio.wait_for(heard, 30))


async def cancels(client):
    try:
        await client.fetch("SELECT pg_sleep(60)", timeout=0.2)
    except asyncio.TimeoutError:
        print("cancelled", await client.fetchval("SELECT 7"))


async def pooled():
    async with asyncpg.create_pool(min_size=1, max_size=5, **LOGIN) as pool:
        print(sum(await asyncio.gather(*[pool.fetchval("SELECT $1::int", number) for number in range(100)])))


async def main():
    client = await asyncpg.connect(server_settings={"application_name": "matrix", "timezone": "Asia/Tokyo"}, **LOGIN)
    print(client.get_server_version()[:2], await client.fetchval("SHOW timezone"), await client.fetchval("SHOW application_name"))
    for step in (values, transactions, streams, notifications, cancels):
        await step(client)
    await client.close()
    await pooled()


asyncio.run(main())
