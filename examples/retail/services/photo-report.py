"""Removes an assignment from the photographer's list. A repeated report counts once."""

import store
import web

MAX_ATTEMPTS = 20  # tries after concurrent changes of the photographer


@web.route("POST")
def report(request):
    done = request.json("assignment", "photographer")
    for _ in range(MAX_ATTEMPTS):
        photographer = store.get(store.PHOTOGRAPHERS, done["photographer"])
        if photographer is None or done["assignment"] not in photographer["open"]:
            raise web.Problem(409, f"{done['photographer']} has no open assignment {done['assignment']!r}")
        left = [assignment for assignment in photographer["open"] if assignment != done["assignment"]]
        after = {**photographer, "open": left, "done": photographer["done"] + 1}
        if store.replace(store.PHOTOGRAPHERS, photographer["id"], photographer, after):
            store.delete(store.ASSIGNMENTS, done["assignment"])
            return {"photographer": photographer["id"], "done": after["done"]}
    raise web.Problem(503, f"other requests changed {done['photographer']} first, {MAX_ATTEMPTS} times")


if __name__ == "__main__":
    web.serve()
