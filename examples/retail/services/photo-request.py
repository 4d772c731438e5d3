"""Asks for a photo of a product: a photographer is chosen, gets a mail, and the assignment is written down.

The mail is sent off and not waited for: an order for a photo does not fail because a mail is slow.
"""

import web


@web.route("POST")
def request_photo(request):
    product = request.json("id", "name")
    assigned = request.call("photo-assign", {"product": {"id": product["id"], "name": product["name"]}})
    request.tell("photo-message", assigned)
    return request.call("photo-record", assigned)


if __name__ == "__main__":
    web.serve()
