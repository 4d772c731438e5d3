"""Registers a photographer. One who registers again starts anew: assignments that were open stay without a report."""

import store
import web


@web.route("POST")
def register(request):
    given = request.json("id", "name", "email")
    photographer = {"id": given["id"], "name": given["name"], "email": given["email"], "open": [], "done": 0}
    store.put(store.PHOTOGRAPHERS, photographer["id"], photographer)
    return photographer


if __name__ == "__main__":
    web.serve()
