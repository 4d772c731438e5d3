"""Control messages between the job and a local worker, one line of JSON each."""

import contextlib
import json
import socket

from ._attempt import ControlMessage


class Pipe:
    """One end of a connection between two processes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._rest = connection, b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: ControlMessage) -> None:
        with contextlib.suppress(OSError):  # a dead peer is detected by its end
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[ControlMessage] | None:
        """Returns the received messages, [] if a non-blocking socket has none, and None at the end."""
        try:
            received = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [json.loads(line) for line in lines] if received else None
