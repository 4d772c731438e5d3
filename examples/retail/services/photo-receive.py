"""Stores the photo of an open assignment, under its product."""

import store
import web


@web.route("POST")
def receive(request):
    sent = request.json("assignment", "photo")
    assigned = store.get(store.ASSIGNMENTS, sent["assignment"])
    if assigned is None:
        raise web.Problem(404, f"no assignment {sent['assignment']!r} is open")
    product, photographer = assigned["product"]["id"], assigned["photographer"]["id"]
    store.put(store.PHOTOS, product, {"product": product, "photographer": photographer, "photo": sent["photo"]})
    return {"assignment": sent["assignment"], "photographer": photographer, "product": product}


if __name__ == "__main__":
    web.serve()
