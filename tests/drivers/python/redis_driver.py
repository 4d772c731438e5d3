"""redis-py: RESP 2 and 3, pipelines, transactions, scripts, subscriptions, blocking commands, the asynchronous client."""
import asyncio
import threading

import redis
import redis.asyncio

from target import HOST, PASSWORD, PORT


def commands(client):
    client.flushdb()
    client.set("text", "é🙂", ex=100)
    print(client.get("text"), client.ttl("text") > 90, client.hset("hash", mapping={"a": 1, "b": 2}), client.hgetall("hash"))
    with client.pipeline(transaction=False) as pipe:
        for number in range(100):
            pipe.incrby("sum", number)
        print(pipe.execute()[-1])
    with client.pipeline() as pipe:
        pipe.watch("sum")
        before = int(pipe.get("sum"))
        pipe.multi()
        pipe.set("sum", before + 1)
        print(pipe.execute())
    print(client.register_script("return {KEYS[1], ARGV[1]}")(keys=["k"], args=["v"]))
    print(sorted(client.scan_iter(count=1)), client.blpop("empty", timeout=0.1))
    try:
        client.lpush("text", 1)
    except redis.ResponseError as error:
        print(error)


def blocking(client):
    timer = threading.Timer(0.2, lambda: client.rpush("queue", "item"))
    timer.start()
    print(client.blpop("queue", timeout=30))
    timer.join()


def subscriptions(client):
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe("news")
        while not client.publish("news", "hello"):
            pass
        while not (message := channel.get_message(timeout=30)):
            pass
        print(message["data"])


async def asynchronous():
    async with redis.asyncio.Redis(host=HOST, port=PORT, password=PASSWORD or None) as client:
        print(sum(await asyncio.gather(*[client.incr("counter") for _ in range(50)])))


for protocol in (2, 3):
    client = redis.Redis(host=HOST, port=PORT, password=PASSWORD or None, protocol=protocol, db=protocol, decode_responses=True)
    for step in (commands, blocking, subscriptions):
        step(client)
    client.flushall()
    client.close()
asyncio.run(asynchronous())
