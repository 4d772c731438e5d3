"""Records an assignment."""

import store
import web


@web.route("POST")
def record(request):
    assigned = request.json("assignment", "photographer", "product")
    store.put(store.ASSIGNMENTS, assigned["assignment"], assigned)
    return assigned


if __name__ == "__main__":
    web.serve()
