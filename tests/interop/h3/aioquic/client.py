"""HTTP/3 by aioquic: see ../README.md."""

import asyncio
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

MEGABYTE = b"x" * (1 << 20)
TIMEOUT_SECONDS = 30


class Client(QuicConnectionProtocol):
    """One connection. Its responses are (status, body)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.answers = {}

    def quic_event_received(self, event):
        for one in self.http.handle_event(event):
            if not isinstance(one, (HeadersReceived, DataReceived)):
                continue
            answer = self.answers.get(one.stream_id)
            if answer is None:
                continue
            if isinstance(one, HeadersReceived):
                answer["status"] = answer["status"] or int(dict(one.headers)[b":status"])
            else:
                answer["body"] += one.data
            if one.stream_ended:
                answer["end"].set_result((answer["status"], bytes(answer["body"])))

    def ask(self, authority, method, body=b""):
        """Begins a request, in the first flight if the handshake is not complete."""
        stream = self._quic.get_next_available_stream_id()
        end = asyncio.get_running_loop().create_future()
        self.answers[stream] = {"status": 0, "body": bytearray(), "end": end}
        headers = [(":method", method), (":scheme", "https"), (":authority", authority), (":path", "/function/tell")]
        if body:
            headers.append(("content-length", str(len(body))))
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        self.http.send_headers(stream, encoded, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        return asyncio.wait_for(end, TIMEOUT_SECONDS)


def print_step(step, answer):
    status, body = answer
    text = f"{len(body)} bytes" if len(body) > 1000 else body.decode().strip()
    print(f"{step}: {status} {text if status == 200 else ''}".rstrip())


async def main(host, port, authorities):
    tickets = []
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
    configuration.load_verify_locations(authorities)

    def open_connection(**options):
        return connect(host, port, configuration=configuration, create_protocol=Client,
                       session_ticket_handler=tickets.append, **options)

    async with open_connection() as client:
        print_step("get", await client.ask("localhost", "GET"))
        print_step("post", await client.ask("localhost", "POST", MEGABYTE))
    for method in ["GET", "POST"]:
        configuration.session_ticket = tickets.pop()
        async with open_connection(wait_connected=False) as client:
            response = client.ask("localhost", method, b"" if method == "GET" else b"body")
            client.transmit()
            print_step(f"early {method.lower()}", await response)
            response = client.ask("localhost", method, b"" if method == "GET" else b"body")
            client.transmit()
            print_step(f"{method.lower()} again", await response)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
