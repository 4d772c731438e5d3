"""Sends a mail to the photographer, as a line in the log."""

import sys

import web


@web.route("POST")
def message(request):
    assigned = request.json("assignment", "photographer", "product")
    to, product = assigned["photographer"]["email"], assigned["product"]
    text = f"please photograph {product['name']} ({product['id']}), assignment {assigned['assignment']}"
    print(f"mail to {to}: {text}", file=sys.stderr, flush=True)
    return {"sentTo": to}


if __name__ == "__main__":
    web.serve()
