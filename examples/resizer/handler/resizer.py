"""Makes a picture smaller: `?url=URL&size=N` fetches it and answers with one that fits into N × N, in the same format.

A URL without a host, such as /function/pictures/large.jpg, is asked of the gateway.
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
TIMEOUT = 10.0  # seconds that the picture's server may be silent
LARGEST = 20 << 20  # bytes of a picture as it is fetched
PIXELS = 50_000_000  # of a picture as it is unpacked: a small file can hold a large one
SIDES = range(1, 2001)  # pixels
FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
PASSED_ON = ("X-Call-Id", "traceparent", "tracestate")  # what ties the calls of one request together


def wanted(query):
    """Parses the URL and the size."""
    url, size = urllib.parse.urljoin(GATEWAY, query.get("url", "")), query.get("size", "")
    if "url" not in query or urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise web.Problem(400, "url is the http address of a picture")
    if not (size.isascii() and size.isdigit() and int(size) in SIDES):
        raise web.Problem(400, f"size is a number of pixels from {SIDES[0]} to {SIDES[-1]}")
    return url, int(size)


def fetch(url, headers):
    """The picture's file."""
    request = urllib.request.Request(url, headers={name: headers[name] for name in PASSED_ON if name in headers})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            data = response.read(LARGEST + 1)
    except urllib.error.HTTPError as error:
        raise web.Problem(404 if error.code == 404 else 502, f"{url} answered {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # no answer, half an answer, an address that is none
        raise web.Problem(502, f"{url}: {error}") from error
    if len(data) > LARGEST:
        raise web.Problem(413, f"{url} holds more than {LARGEST} bytes")
    return data


def smaller(data, size):
    """The file of the smaller picture, and its format."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            if picture.width * picture.height > PIXELS:
                raise web.Problem(413, f"the picture has {picture.width} × {picture.height} pixels, more than {PIXELS}")
            kind = "PNG" if picture.format == "GIF" else picture.format  # a GIF's few colours do not scale
            picture.draft("RGB", (2 * size, 2 * size))  # a JPEG is unpacked no larger than that
            upright = ImageOps.exif_transpose(picture)
            upright.thumbnail((size, size))
            file = io.BytesIO()
            upright.convert("RGBA" if upright.mode == "P" else upright.mode).save(file, kind)
            return file.getvalue(), kind
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what a broken file can cause
        raise web.Problem(422, f"this is no picture that can be read: {error}") from error


def resize(request):
    url, size = wanted(request.query)
    data, kind = smaller(fetch(url, request.headers), size)
    return f"image/{kind.lower()}", data


if __name__ == "__main__":
    web.serve(resize)
