"""Tests the function with its own picture server, and with one that sends invalid files."""

import http.client
import http.server
import io
import pathlib
import sys
import unittest
from urllib.parse import urlencode

RESIZER = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(RESIZER.parent))

from testing import need, standin  # noqa: E402


def setUpModule():
    global PACKAGES, Image
    PACKAGES = need.packages("resizer")
    sys.path.insert(0, PACKAGES)
    from PIL import Image  # the function's own dependency


class Files(http.server.BaseHTTPRequestHandler):
    """A server outside nearpath. `content` maps paths to bodies."""

    content = {}

    def do_GET(self):
        body = self.content[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def file(size, kind, mode="RGB", **options):
    data = io.BytesIO()
    Image.new(mode, size, 1).save(data, kind, **options)
    return data.getvalue()


class ResizerTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.application = standin.StandIn(RESIZER / "stack.yml", {"PYTHONPATH": PACKAGES})
        cls.addClassCleanup(cls.application.stop)
        cls.files = standin.Server(Files)
        cls.addClassCleanup(cls.files.stop)
        cls.outside = f"http://127.0.0.1:{cls.files.server_port}"

    def ask(self, function="resizer", path="/", **query):
        connection = http.client.HTTPConnection("127.0.0.1", self.application.server.server_port, timeout=30)
        connection.request("GET", f"/function/{function}{path}?{urlencode(query)}", headers={"X-Call-Id": self.id()})
        response = connection.getresponse()
        answer = response.status, response.getheader("Content-Type"), response.read()
        connection.close()
        return answer

    def resized(self, url, size):
        status, kind, body = self.ask(url=url, size=size)
        self.assertEqual(status, 200, body)
        return kind, Image.open(io.BytesIO(body))

    def from_outside(self, body, size=100):
        Files.content["/it"] = body
        return self.ask(url=f"{self.outside}/it", size=size)

    def test_a_picture_is_fetched_from_another_function(self):
        kind, small = self.resized("/function/pictures/large.jpg", 200)
        self.assertEqual((kind, small.format, small.size), ("image/jpeg", "JPEG", (200, 133)))
        calls = [(call.function, call.path) for call in self.application.calls_of(self.id())[1:]]
        self.assertEqual(calls, [("pictures", "/large.jpg")])
        self.assertEqual(standin.edges(RESIZER / "stack.yml"), {"resizer": {"pictures"}})

    def test_the_format_is_kept(self):
        for name, kind in [("large.png", "image/png"), ("large.jpg", "image/jpeg")]:
            self.assertEqual(self.resized(f"/function/pictures/{name}", 64)[0], kind)
        self.assertEqual(self.from_outside(file((300, 300), "GIF", "P"))[:2], (200, "image/png"))

    def test_a_small_picture_is_not_enlarged(self):
        self.assertEqual(self.resized("/function/pictures/small.jpg", 1000)[1].size, (160, 120))

    def test_a_rotated_picture_is_put_upright(self):
        exif = Image.Exif()
        exif[0x0112] = 6  # orientation: turned by 90°
        status, _, body = self.from_outside(file((400, 200), "JPEG", exif=exif.tobytes()))
        self.assertEqual((status, Image.open(io.BytesIO(body)).size), (200, (50, 100)))

    def test_an_invalid_file_is_refused(self):
        whole = file((300, 300), "PNG")
        for body in (b"", b"hello", whole[:60], file((10, 10), "BMP")):
            status, _, text = self.from_outside(body)
            self.assertEqual(status, 422, text)

    def test_a_picture_above_the_limits_is_refused(self):
        self.assertEqual(self.from_outside(b"x" * ((20 << 20) + 1))[0], 413)
        self.assertEqual(self.from_outside(file((8000, 7000), "PNG", "1"))[0], 413)  # a small file with many pixels

    def test_wrong_input_is_refused(self):
        url = "/function/pictures/small.jpg"
        for query in ({}, {"url": url}, {"size": 9}, {"url": url, "size": 0}, {"url": url, "size": 2001}, {"url": url, "size": "x"}):
            self.assertEqual(self.ask(**query)[0], 400, query)
        self.assertEqual(self.ask(url="file:///etc/passwd", size=9)[0], 400)
        self.assertEqual(self.ask(url="/function/pictures/none.jpg", size=9)[0], 404)
        self.assertEqual(self.ask(url=f"http://127.0.0.1:{standin.free_port()}/x", size=9)[0], 502)


if __name__ == "__main__":
    unittest.main()
