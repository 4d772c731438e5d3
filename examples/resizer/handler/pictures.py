"""Serves generated pictures, so that the example needs no internet: `large.jpg`, `large.png`, `small.jpg`."""

import io

from PIL import Image

import web

SIZES = {"large": (1920, 1280), "small": (160, 120)}  # pixels
KINDS = {"jpg": "JPEG", "png": "PNG"}


def draw(size, kind):
    """Draws gradients."""
    gradients = (Image.radial_gradient("L"), Image.linear_gradient("L"), Image.linear_gradient("L").rotate(90))
    red, green, blue = (gradient.resize(size) for gradient in gradients)
    file = io.BytesIO()
    Image.merge("RGB", (red, green, blue)).save(file, kind)
    return file.getvalue()


FILES = {f"/{name}.{end}": (f"image/{kind.lower()}", draw(size, kind)) for name, size in SIZES.items() for end, kind in KINDS.items()}


def picture(request):
    if request.path not in FILES:
        raise web.Problem(404, f"no picture {request.path}; there are {', '.join(FILES)}")
    return FILES[request.path]


if __name__ == "__main__":
    web.serve(picture)
