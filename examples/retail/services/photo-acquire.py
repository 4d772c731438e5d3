"""Receives the photo of an assignment: stores and accepts it, and completes the assignment."""

from urllib.parse import urlencode

import web


@web.route("POST")
def acquire(request):
    received = request.call("photo-receive", request.json("assignment", "photo"))
    about = {"photographer": received["photographer"], "product": received["product"]}
    success = request.call("photo-success", path=f"/?{urlencode(about)}")
    report = request.call("photo-report", received)
    return {**received, **success, **report}


if __name__ == "__main__":
    web.serve()
