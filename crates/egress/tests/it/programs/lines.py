"""Python's ways to connect: `lines.py HOST PORT`."""
import asyncio
import http.client
import select
import socket
import sys
import threading
import urllib.request

host, port = sys.argv[1], int(sys.argv[2])
base = f"http://{host}:{port}"


def ask(sock, line):
    sock.sendall(line.encode() + b"\n")
    with sock.makefile("rb") as answers:
        print(answers.readline().decode().strip())


with socket.create_connection((host, port)) as plain:
    ask(plain, "create_connection")
with socket.create_connection((host, port), timeout=20) as timed:
    ask(timed, "with a timeout")
    print(timed.gettimeout(), timed.getpeername() == (host, port))
with socket.socket() as late:
    late.setblocking(False)
    print("connect_ex", late.connect_ex((host, port)) in (0, 115))
    select.select([], [late], [], 20)
    late.setblocking(True)
    ask(late, "connect_ex")
with socket.create_connection((host, port)) as half:
    half.sendall(b"half a line")
    half.shutdown(socket.SHUT_WR)
    print(half.makefile("rb").read())

for number in range(3):
    print(urllib.request.urlopen(f"{base}/urllib/{number}", b"x" * number).read().decode().strip())

kept = http.client.HTTPConnection(host, port)
for number in range(3):
    kept.request("GET", f"/kept/{number}")
    print(kept.getresponse().read().decode().strip())
kept.close()


async def talk(number):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"asyncio {number}\n".encode())
    answer = (await reader.readline()).decode().strip()
    writer.close()
    await writer.wait_closed()
    return answer


async def many():
    for answer in await asyncio.gather(*(talk(number) for number in range(20))):
        print(answer)


asyncio.run(many())

answers = {}


def one(number):
    answers[number] = urllib.request.urlopen(f"{base}/thread/{number}").read().decode().strip()


threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for number in sorted(answers):
    print(answers[number])
