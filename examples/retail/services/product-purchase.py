"""Sells a product: looks up the price, charges the customer's card and publishes the sale."""

import web


@web.route("POST")
def purchase(request):
    wanted = request.json("id", "user")
    price = request.call("product-purchase-get-price", {"id": wanted["id"]})
    sale = {"id": wanted["id"], "user": wanted["user"], "cents": price["cents"]}
    authorized = request.call("product-purchase-authorize-cc", sale)
    return request.call("product-purchase-publish", {**sale, **authorized})


if __name__ == "__main__":
    web.serve()
