"""Two tenants: `leave PORT SEED` leaves its connection in a state that the seed stands for, `see PORT SEED` prints what its own is like."""

import os
import random
import socket
import ssl
import struct
import sys

TCP, ANY, IP = socket.IPPROTO_TCP, socket.SOL_SOCKET, socket.IPPROTO_IP
NUMBERS = [
    (TCP, socket.TCP_NODELAY, 1),
    (TCP, socket.TCP_CORK, 1),
    (TCP, socket.TCP_KEEPIDLE, 77),
    (TCP, socket.TCP_KEEPINTVL, 7),
    (TCP, socket.TCP_KEEPCNT, 3),
    (TCP, socket.TCP_USER_TIMEOUT, 4_321),
    (TCP, socket.TCP_LINGER2, 5),
    (TCP, socket.TCP_NOTSENT_LOWAT, 4_096),
    (ANY, socket.SO_KEEPALIVE, 1),
    (ANY, socket.SO_OOBINLINE, 1),
    (ANY, socket.SO_RCVLOWAT, 9),
    (ANY, socket.SO_PRIORITY, 5),
    (IP, socket.IP_TOS, 0x10),
    (IP, socket.IP_TTL, 9),
]
BYTES = [
    (ANY, socket.SO_LINGER, struct.pack("ii", 1, 0)),
    (ANY, socket.SO_RCVTIMEO, struct.pack("ll", 3, 0)),
    (TCP, socket.TCP_CONGESTION, b"reno"),
]


def set_some(own, dice):
    for level, name, value in dice.sample(NUMBERS + BYTES, dice.randint(0, 6)):
        own.setsockopt(level, name, value)


def half_a_line(own, dice):
    own.sendall(b"leaked"[: dice.randint(1, 6)])


def half_a_reply(own, dice):
    own.sendall(b"leaked\n" * dice.randint(1, 2_000))
    own.recv(dice.randint(1, 20))


def out_of_band(own, dice):
    own.send(b"!", socket.MSG_OOB)


def tls(own, dice):
    """A server that knows no TLS: what is left is a hello, which it takes for half a line or more."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with_tls = trusting.wrap_bio(ssl.MemoryBIO(), hello := ssl.MemoryBIO(), server_hostname="shop")
    try:
        with_tls.do_handshake()
    except ssl.SSLWantReadError:
        own.sendall(hello.read())


def leave(own, dice):
    set_some(own, dice)
    own.connect(("127.0.0.1", int(sys.argv[2])))
    set_some(own, dice)
    dice.choice([half_a_line, half_a_reply, out_of_band, tls])(own, dice)
    if dice.random() < 0.3:
        own.shutdown(socket.SHUT_WR)
    os._exit(0)


def see(own, dice):
    own.connect(("127.0.0.1", int(sys.argv[2])))
    print([own.getsockopt(level, name) for level, name, _ in NUMBERS])
    print([own.getsockopt(level, name, 16) for level, name, _ in BYTES])
    own.sendall(b"mine\n")
    own.shutdown(socket.SHUT_WR)
    print(own.makefile("rb").read())


{"leave": leave, "see": see}[sys.argv[1]](socket.socket(), random.Random(int(sys.argv[3])))
