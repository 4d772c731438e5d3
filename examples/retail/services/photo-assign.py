"""Chooses the photographer who has least to do, of five at most, and puts the assignment on his or her list."""

import random
import uuid

import store
import web

CHOICE = 5  # photographers that are looked at
ATTEMPTS = 20  # rounds in which others may be quicker


def choose(photographers):
    """Returns a photographer with the fewest assignments."""
    return min(photographers, key=lambda photographer: (len(photographer["open"]), random.random()))


@web.route("POST")
def assign(request):
    product = request.json("product")["product"]
    assignment = str(uuid.uuid4())
    for attempt in range(ATTEMPTS):
        photographers = store.scan(store.PHOTOGRAPHERS, limit=CHOICE)
        if not photographers:
            raise web.Problem(409, "no photographer is registered")
        least = choose(photographers) if attempt == 0 else random.choice(photographers)  # who lost once keeps out of the way
        busier = {**least, "open": [*least["open"], assignment]}
        if store.replace(store.PHOTOGRAPHERS, least["id"], least, busier):
            photographer = {key: least[key] for key in ("id", "name", "email")}
            return {"assignment": assignment, "photographer": photographer, "product": product}
    raise web.Problem(503, f"other requests took every photographer first, {ATTEMPTS} times")


if __name__ == "__main__":
    web.serve()
