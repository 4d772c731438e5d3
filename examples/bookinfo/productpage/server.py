"""Serves the page of a book. The functions `details` and `reviews` have its parts, and are called by name."""

import concurrent.futures
import errno
import http.client
import http.server
import json
import socket
import urllib.error
import urllib.parse
import urllib.request

import page

TITLES = {"1": "Frankenstein", "2": "Moby-Dick"}
CALL_TIMEOUT = 60  # seconds: a callee that sleeps is started first, and so are its own callees
CONNECT_TIMEOUT = 5  # seconds
MAX_FORM_BYTES = 1024


class CallError(Exception):
    """A call failed. The status is 400 if the callee's was, and else 502."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def call(url, form=None):
    """Calls a function and returns its JSON; a form is sent with POST."""
    data = urllib.parse.urlencode(form).encode() if form else None
    try:
        with urllib.request.urlopen(url, data, CALL_TIMEOUT) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace").strip()
        raise CallError(400 if error.code == 400 else 502, f"status {error.code}: {text}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CallError(502, str(error)) from error


def reviews_url(book, query):
    """Returns the address of a book's reviews. `ratings` in the query chooses the ratings."""
    choice = {"ratings": query["ratings"]} if "ratings" in query else {}
    return f"http://reviews/{book}?{urllib.parse.urlencode(choice)}"


def read_parts(book, query):
    """Calls both functions at the same time. A part whose call failed is None, and `missing` tells why."""
    parts = {"details": None, "reviews": None}
    urls = {"details": f"http://details/{book}", "reviews": reviews_url(book, query)}
    missing = {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        calls = {name: pool.submit(call, url) for name, url in urls.items()}
    for name, future in calls.items():
        try:
            parts[name] = future.result()
        except CallError as error:
            missing[name] = str(error)
    return parts, missing


def read_book(book, query):
    """Returns everything that the page shows."""
    parts, missing = read_parts(book, query)
    reviews = parts["reviews"] or {"ratings": None, "reviews": None, "missing": {}}
    return {
        "book": book,
        "title": TITLES[book],
        "details": parts["details"],
        "reviews": reviews["reviews"],
        "ratings": reviews["ratings"],
        "missing": missing | reviews["missing"],
    }


def try_connect(address):
    """Returns the outcome of a connection to port 80 of an address. README.md shows what is denied."""
    try:
        socket.create_connection((address, 80), CONNECT_TIMEOUT).close()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "connected"


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # header and body leave in one write

    def do_GET(self):
        path, query = self.target()
        if path == "/connect":
            return self.answer(200, "text/plain", try_connect(query.get("address", "")) + "\n")
        book = self.known_book(path, query)
        if book is None:
            return None
        content = read_book(book, query)
        if "application/json" in self.headers.get("Accept", ""):
            return self.answer(200, "application/json", json.dumps(content, indent=2) + "\n")
        return self.answer(200, "text/html; charset=utf-8", page.render(content, TITLES))

    def do_POST(self):
        """Stores a rating, and leads to the page that shows it."""
        length = int(self.headers.get("Content-Length") or -1)
        if not 0 <= length <= MAX_FORM_BYTES:  # http.server does not decode chunks
            self.close_connection = True
            return self.answer(413, "text/plain", f"a form has a Content-Length of at most {MAX_FORM_BYTES}\n")
        form = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode(errors="replace")))
        path, query = self.target()
        book = self.known_book(path, query)
        if book is None:
            return None
        try:
            call(reviews_url(book, query), {"reviewer": form.get("reviewer", ""), "stars": form.get("stars", "")})
        except CallError as error:
            return self.answer(error.status, "text/plain", f"reviews: {error}\n")
        location = "?" + urllib.parse.urlencode(query)
        return self.answer(303, "text/plain", "", [("Location", location)])

    def target(self):
        """Returns the path and the query of the request."""
        url = urllib.parse.urlsplit(self.path)
        return url.path, dict(urllib.parse.parse_qsl(url.query))

    def known_book(self, path, query):
        """Returns the number of the book, or answers 404."""
        book = query.setdefault("book", "1")
        if path == "/" and book in TITLES:
            return book
        self.answer(404, "text/plain", f"no page {self.path}: the books are /?book=1 and /?book=2\n")
        return None

    def answer(self, status, kind, text, headers=()):
        body = text.encode()
        self.send_response(status)
        for name, value in [("Content-Type", kind), ("Content-Length", str(len(body))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass  # the gateway's access log has it


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


Server(("127.0.0.1", 5000), Pages).serve_forever()
