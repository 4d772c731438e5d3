"""Shrinks a picture: `?url=URL&size=N` fetches it and returns one of at most N × N pixels in the same format.

A URL without a host, such as /function/pictures/large.jpg, is fetched from the gateway.
"""

import http.client
import io
import os
import urllib.error
import urllib.parse
import urllib.request

from PIL import Image, ImageOps

import web

GATEWAY = os.environ.get("gateway_url", "http://gateway:8080")
TIMEOUT = 10.0  # seconds of silence of the picture's server
MAX_FILE_BYTES = 20 << 20  # bytes of a fetched picture
MAX_PIXELS = 50_000_000  # pixels of a decoded picture, because a small file can decode to a large one
SIDES = range(1, 2001)  # pixels
FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
FORWARDED_HEADERS = ("X-Call-Id", "traceparent", "tracestate")  # identify the calls of one request


def parse_query(query):
    """Parses the URL and the size."""
    url, size = urllib.parse.urljoin(GATEWAY, query.get("url", "")), query.get("size", "")
    if "url" not in query or urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise web.Problem(400, "url is the http address of a picture")
    if not (size.isascii() and size.isdigit() and int(size) in SIDES):
        raise web.Problem(400, f"size is a number of pixels from {SIDES[0]} to {SIDES[-1]}")
    return url, int(size)


def fetch(url, headers):
    """Fetches the picture's file."""
    request = urllib.request.Request(url, headers={name: headers[name] for name in FORWARDED_HEADERS if name in headers})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            data = response.read(MAX_FILE_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise web.Problem(404 if error.code == 404 else 502, f"{url} answered {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # no response, a truncated one, or an invalid URL
        raise web.Problem(502, f"{url}: {error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise web.Problem(413, f"{url} holds more than {MAX_FILE_BYTES} bytes")
    return data


def shrink(data, size):
    """Returns the file of the smaller picture, and its format."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise web.Problem(413, f"the picture has {picture.width} × {picture.height} pixels, more than {MAX_PIXELS}")
            kind = "PNG" if picture.format == "GIF" else picture.format  # a GIF's few colours do not scale
            picture.draft("RGB", (2 * size, 2 * size))  # a JPEG is decoded at most at that size
            upright = ImageOps.exif_transpose(picture)
            upright.thumbnail((size, size))
            file = io.BytesIO()
            upright.convert("RGBA" if upright.mode == "P" else upright.mode).save(file, kind)
            return file.getvalue(), kind
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # errors of damaged files
        raise web.Problem(422, f"the file is no readable picture: {error}") from error


def resize(request):
    url, size = parse_query(request.query)
    data, kind = shrink(fetch(url, request.headers), size)
    return f"image/{kind.lower()}", data


if __name__ == "__main__":
    web.serve(resize)
