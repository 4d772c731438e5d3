"""Returns the price of a product."""

import store
import web


@web.route("POST")
def get_price(request):
    product = request.json("id")["id"]
    price = store.get(store.PRICES, product)
    if price is None:
        raise web.Problem(404, f"no price of product {product!r}")
    return price


if __name__ == "__main__":
    web.serve()
