"""Adds products with category and price to the catalogue, and sets their images."""

import store
import web


@web.route("POST", "/product")
def add_product(request):
    fields = request.json("id", "category", "name", "price")
    if not isinstance(fields["price"], int) or fields["price"] < 0:
        raise web.Problem(400, "price is a whole number of cents")
    product = {key: fields.get(key, "") for key in ("id", "category", "name", "brand", "description", "image")}
    store.put(store.CATEGORIES, fields["category"], {"category": fields["category"]})
    store.put(store.PRODUCTS, fields["id"], product)
    store.put(store.PRICES, fields["id"], {"id": fields["id"], "cents": fields["price"]})
    return product


@web.route("POST", "/image")
def set_image(request):
    fields = request.json("id", "image")
    product = store.get(store.PRODUCTS, fields["id"])
    if product is None:
        raise web.Problem(404, f"no product {fields['id']!r}")
    product["image"] = fields["image"]
    store.put(store.PRODUCTS, fields["id"], product)
    return product


if __name__ == "__main__":
    web.serve()
