"""A minimal PostgreSQL client: one text column, and the server's error message."""
import socket, struct

class Session:
    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), 60)
        startup = struct.pack("!i", 196608) + b"user\0postgres\0database\0postgres\0\0"
        self.socket.sendall(struct.pack("!i", len(startup) + 4) + startup)
        self.rows()

    def read(self, size):
        all = b""
        while len(all) < size:
            more = self.socket.recv(size - len(all))
            if not more:
                raise OSError("closed")
            all += more
        return all

    def rows(self):
        rows = []
        while True:
            kind, size = struct.unpack("!ci", self.read(5))
            body = self.read(size - 4)
            if kind == b"E":
                fields = {field[:1]: field[1:] for field in body.split(b"\0")}
                raise OSError(f"{fields[b'C'].decode()} {fields[b'M'].decode()}")
            if kind == b"D":
                rows.append(body[6:].decode())
            if kind == b"Z":
                return rows

    def ask(self, statement):
        query = statement.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(query) + 4) + query)
        return self.rows()

    def close(self):
        self.socket.sendall(b"X\0\0\0\4")
        self.socket.close()
