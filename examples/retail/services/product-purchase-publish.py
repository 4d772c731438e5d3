"""Publishes a sale: the event for a warehouse. Makes no calls."""

import datetime

import web


@web.route("POST")
def publish(request):
    sale = request.json("id", "user", "cents", "authorization", "card")
    return {"event": "purchased", "at": datetime.datetime.now(datetime.timezone.utc).isoformat(), **sale}


if __name__ == "__main__":
    web.serve()
