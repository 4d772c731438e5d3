"""A test certificate authority, and TLS servers on loopback with its certificates.

`authority.py FOLDER PORT` runs a server for localhost with the authority FOLDER/ca.pem, and prints `ready`.
"""

import datetime
import ipaddress
import pathlib
import socket
import ssl
import sys
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NOW = datetime.datetime.now(datetime.timezone.utc)


def name(text):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class Authority:
    """Issues certificates in `folder`. `file` is the authority's certificate."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.key, self.name = ec.generate_private_key(ec.SECP256R1()), name("Test authority")
        ca = self.unsigned(self.name, self.key.public_key(), 10).add_extension(x509.BasicConstraints(True, 0), True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        ca = ca.add_extension(usage, True).add_extension(self.own_key(), False)
        self.file = self.folder / "ca.pem"
        self.file.write_bytes(ca.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def own_key(self):
        return x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())

    def unsigned(self, subject, key, days):
        begin, end = NOW - datetime.timedelta(days=20), NOW + datetime.timedelta(days=days, hours=1)
        return x509.CertificateBuilder(self.name, subject, key, x509.random_serial_number(), begin, end)

    def issue(self, host, days, signer=None):
        """Returns a file with key and certificate for a host and 127.0.0.1, valid for `days` (negative: expired)."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternative = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = self.unsigned(name(host), key.public_key(), days)
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self.own_key()), False)
        certificate = builder.sign(signer or self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file = self.folder / f"{host}{days}{'-forged' if signer else ''}.pem"
        file.write_bytes(certificate + key.private_bytes(*plain))
        return file


class TlsServer:
    """Completes handshakes and sends no data. `requested_names` lists the clients' server names."""

    def __init__(self, file, port=0):
        self.requested_names, self.connections = [], 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(file)
        self.context.sni_callback = lambda _socket, name, _context: self.requested_names.append(name)
        self.socket = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return  # stopped
            self.connections += 1
            try:
                with self.context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(1)
            except OSError:
                pass  # a client without trust disconnects during the handshake

    def stop(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


if __name__ == "__main__":
    TlsServer(Authority(sys.argv[1]).issue("localhost", 30), int(sys.argv[2]))
    print("ready", flush=True)
    threading.Event().wait()
