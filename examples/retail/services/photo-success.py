"""Accepts every photo. Makes no calls."""

import web


@web.route("GET")
def success(request):
    names = [request.query.get(name, "") for name in ("photographer", "product")]
    if "" in names:
        raise web.Problem(400, "the query lacks photographer or product")
    return {"accepted": True, "message": "{} has photographed {}".format(*names)}


if __name__ == "__main__":
    web.serve()
