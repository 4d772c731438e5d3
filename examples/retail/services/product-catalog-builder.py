"""Fills the catalogue: a product with its category and price, and later its image."""

import store
import web


@web.route("POST", "/product")
def add_product(request):
    given = request.json("id", "category", "name", "price")
    if not isinstance(given["price"], int) or given["price"] < 0:
        raise web.Problem(400, "price is a whole number of cents")
    product = {key: given.get(key, "") for key in ("id", "category", "name", "brand", "description", "image")}
    store.put(store.CATEGORIES, given["category"], {"category": given["category"]})
    store.put(store.PRODUCTS, given["id"], product)
    store.put(store.PRICES, given["id"], {"id": given["id"], "cents": given["price"]})
    return product


@web.route("POST", "/image")
def set_image(request):
    given = request.json("id", "image")
    product = store.get(store.PRODUCTS, given["id"])
    if product is None:
        raise web.Problem(404, f"no product {given['id']!r}")
    product["image"] = given["image"]
    store.put(store.PRODUCTS, given["id"], product)
    return product


if __name__ == "__main__":
    web.serve()
