"""Shows the catalogue: its categories, the products of one, or one product."""

import store
import web


@web.route("GET", "/categories")
def categories(_request):
    return [entry["category"] for entry in store.scan(store.CATEGORIES)]


@web.route("GET", "/products")
def products(request):
    """Returns one product for `?id=`, or the products of `?category=`."""
    if "id" not in request.query:
        return store.scan(store.PRODUCTS, **{key: request.query[key] for key in ("category",) if key in request.query})
    product = store.get(store.PRODUCTS, request.query["id"])
    if product is None:
        raise web.Problem(404, f"no product {request.query['id']!r}")
    return product


if __name__ == "__main__":
    web.serve()
