import asyncio
import sys
import asyncpg
import psycopg

host, port = sys.argv[1], int(sys.argv[2])


async def with_asyncpg():
    to = dict(host=host, port=port, user="anybody", password="wrong", database="postgres", ssl=False)
    c = await asyncpg.connect(**to)
    assert await c.fetchval("SELECT $1::int + 1", 41) == 42
    async with c.transaction():
        assert [r[0] async for r in c.cursor("SELECT generate_series(1, 100)", prefetch=7)] == list(range(1, 101))
    statement = await c.prepare("SELECT $1::text || 'x'")
    assert [await statement.fetchval(str(n)) for n in range(20)] == [f"{n}x" for n in range(20)]
    try:
        await c.fetch("SELECT 1/0")
        raise SystemExit("no error")
    except asyncpg.DivisionByZeroError:
        pass
    try:
        await c.fetch("SELECT pg_sleep(60)", timeout=0.2)
        raise SystemExit("no timeout")
    except asyncio.TimeoutError:
        pass
    assert await c.fetchval("SELECT 7") == 7
    await c.execute("DROP TABLE IF EXISTS copied; CREATE TABLE copied (a int)")
    await c.copy_records_to_table("copied", records=[(n,) for n in range(1000)])
    assert await c.fetchval("SELECT count(*) FROM copied") == 1000
    await c.executemany("INSERT INTO copied VALUES ($1)", [(n,) for n in range(200)])
    await c.close()
    async with asyncpg.create_pool(min_size=1, max_size=5, **to) as pool:
        assert sum(await asyncio.gather(*[pool.fetchval("SELECT $1::int", n) for n in range(100)])) == 4950


async def with_psycopg():
    where = f"host={host} port={port} user=anybody password=wrong dbname=postgres"
    async with await psycopg.AsyncConnection.connect(where) as c:
        for n in range(20):
            assert await (await c.execute("SELECT %s::int", [n])).fetchone() == (n,)


asyncio.run(with_asyncpg())
asyncio.run(with_psycopg())
print("done")
