"""Assigns a photo to the photographer with the fewest assignments, of at most five."""

import random
import uuid

import store
import web

MAX_CANDIDATES = 5  # photographers to choose from
MAX_ATTEMPTS = 20  # tries after concurrent changes


def choose(photographers):
    """Returns a photographer with the fewest assignments."""
    return min(photographers, key=lambda photographer: (len(photographer["open"]), random.random()))


@web.route("POST")
def assign(request):
    product = request.json("product")["product"]
    assignment = str(uuid.uuid4())
    for attempt in range(MAX_ATTEMPTS):
        photographers = store.scan(store.PHOTOGRAPHERS, limit=MAX_CANDIDATES)
        if not photographers:
            raise web.Problem(409, "no photographer is registered")
        chosen = choose(photographers) if attempt == 0 else random.choice(photographers)  # after a conflict a random choice avoids the next one
        updated = {**chosen, "open": [*chosen["open"], assignment]}
        if store.replace(store.PHOTOGRAPHERS, chosen["id"], chosen, updated):
            photographer = {key: chosen[key] for key in ("id", "name", "email")}
            return {"assignment": assignment, "photographer": photographer, "product": product}
    raise web.Problem(503, f"other requests took every photographer first, {MAX_ATTEMPTS} times")


if __name__ == "__main__":
    web.serve()
