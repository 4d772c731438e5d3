"""Shows the TLS certificate of a host: POST a host name or HOST:PORT. Returns text, or JSON with `?output=json`.

An untrusted certificate is shown with the reason. Each request opens one connection, and a second one for untrusted
certificates.
"""

import datetime
import http.server
import json
import os
import re
import socket
import ssl
import sys
import urllib.parse

from cryptography import x509

PORT = int(os.environ.get("PORT", "5000"))
TLS_PORT = int(os.environ.get("TLS_PORT") or 443)
TIMEOUT = 5.0  # seconds: to connect, and for every step of the handshake
MAX_BODY_BYTES = 300  # a host name has at most 253

CHECKED = ssl.create_default_context(cafile=os.environ.get("CA_FILE") or None)
UNCHECKED = ssl.create_default_context()
UNCHECKED.check_hostname, UNCHECKED.verify_mode = False, ssl.CERT_NONE


class Problem(Exception):
    """Ends a request with a status other than 200."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def target(text):
    """Parses host and port of `HOST`, `HOST:PORT`, `[IPv6]:PORT` or a URL."""
    text = text.strip().removeprefix("https://").split("/")[0]
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?", text)
    port = int(found[3] or TLS_PORT) if found else 0
    if not 0 < port < 65536:
        raise Problem(400, f"{text[:60]!r} is no host: send HOST or HOST:PORT")
    return found[1] or found[2], port


def handshake(host, port, context):
    """Returns the host's certificate (DER), the TLS version and the cipher."""
    with socket.create_connection((host, port), timeout=TIMEOUT) as raw:
        with context.wrap_socket(raw, server_hostname=host) as tls:
            return tls.getpeercert(binary_form=True), tls.version(), tls.cipher()[0]


def inspect(host, port):
    """Makes a handshake, and also returns the reason if the certificate is untrusted."""
    try:
        try:
            return *handshake(host, port, CHECKED), None
        except ssl.SSLCertVerificationError as error:
            return *handshake(host, port, UNCHECKED), error.verify_message
    except OSError as error:  # refused, unknown, silent, or no TLS
        raise Problem(502, f"{host}:{port} shows no certificate: {error}") from error


def info(host, port):
    """Returns the certificate's fields."""
    der, version, cipher, distrust = inspect(host, port)
    certificate = x509.load_der_x509_certificate(der)
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "host": host,
        "port": port,
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": names(certificate),
        "notBefore": certificate.not_valid_before_utc.isoformat(),
        "notAfter": certificate.not_valid_after_utc.isoformat(),
        "daysLeft": (certificate.not_valid_after_utc - now).days,
        "serial": f"{certificate.serial_number:x}",
        "trusted": distrust is None,
        "reason": distrust or "",
        "protocol": version,
        "cipher": cipher,
    }


def names(certificate):
    """Returns the certificate's names and addresses."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return found.get_values_for_type(x509.DNSName) + [str(ip) for ip in found.get_values_for_type(x509.IPAddress)]


def text(fields):
    """Formats one line per field."""
    values = {**fields, "names": ", ".join(fields["names"]), "trusted": "yes" if fields["trusted"] else "no"}
    return "".join(f"{name + ':':<11} {value}\n" for name, value in values.items() if value != "")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True
    wbufsize = 65536  # header and body leave in one write

    def do_POST(self):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        try:
            fields = info(*target(self.body()))
            body, kind = (json.dumps(fields), "application/json") if query.get("output") == "json" else (text(fields), "text/plain")
            self.reply(200, body, kind)
        except Problem as problem:
            self.reply(problem.status, f"{problem}\n", "text/plain")

    def body(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES or "Transfer-Encoding" in self.headers:  # http.server does not decode chunks
            self.close_connection = True
            raise Problem(413, f"a host name has a Content-Length of at most {MAX_BODY_BYTES} bytes")
        return self.rfile.read(length).decode(errors="replace")

    def reply(self, status, body, kind):
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, *_):
        pass  # the gateway's access log has it


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # pending connections; Python's default of 5 overflows under load

    def handle_error(self, request, client_address):
        """Ignores disconnected callers."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


if __name__ == "__main__":
    Server(("127.0.0.1", PORT), Handler).serve_forever()
