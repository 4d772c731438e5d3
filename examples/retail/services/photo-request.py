"""Requests a photo of a product: chooses a photographer, sends a mail and records the assignment.

The mail is not awaited, so a slow mail does not fail the request.
"""

import web


@web.route("POST")
def request_photo(request):
    product = request.json("id", "name")
    assigned = request.call("photo-assign", {"product": {"id": product["id"], "name": product["name"]}})
    request.notify("photo-message", assigned)
    return request.call("photo-record", assigned)


if __name__ == "__main__":
    web.serve()
