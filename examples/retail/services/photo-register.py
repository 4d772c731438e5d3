"""Registers a photographer. A repeated registration drops open assignments."""

import store
import web


@web.route("POST")
def register(request):
    fields = request.json("id", "name", "email")
    photographer = {"id": fields["id"], "name": fields["name"], "email": fields["email"], "open": [], "done": 0}
    store.put(store.PHOTOGRAPHERS, photographer["id"], photographer)
    return photographer


if __name__ == "__main__":
    web.serve()
