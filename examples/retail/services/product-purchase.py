"""Sells a product: its price is looked up, the customer's card is asked, and the sale is made known."""

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
