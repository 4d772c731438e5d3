"""Turns a cart into an order. The steps run in sequence, because each needs the previous one:

GetCart, GetProduct and Convert for each item, GetQuote, Convert, Charge, ShipOrder, EmptyCart, SendOrderConfirmation.
"""

import uuid
from urllib.parse import quote

import shop
from money import total


def priced(request, items, currency):
    """Returns the items with prices in the customer's currency."""
    products = [request.call("productcatalog", "GET", f"/products/{quote(i['productId'])}") for i in items]
    wanted = [{"from": product["price"], "to": currency} for product in products]
    prices = [request.call("currency", "POST", "/convert", body) for body in wanted]
    return [{**item, "price": price} for item, price in zip(items, prices)]


@shop.route("POST", "/orders")
def place_order(request):
    order = request.json()
    user, currency, address = order["user"], order["currency"], order["address"]
    items = request.call("cart", "GET", f"/carts/{quote(user)}")["items"]
    if not items:
        raise shop.Problem(409, "the cart is empty")
    lines = priced(request, items, currency)
    shipment = {"items": items, "address": address}
    shipping = request.call("shipping", "POST", "/quote", shipment)
    shipping = request.call("currency", "POST", "/convert", {"from": shipping, "to": currency})
    amount = total([(line["price"], line["quantity"]) for line in lines] + [(shipping, 1)], currency)
    payment = request.call("payment", "POST", "/charge", {"amount": amount, "card": order["card"]})
    shipped = request.call("shipping", "POST", "/orders", shipment)
    request.call("cart", "DELETE", f"/carts/{quote(user)}")
    done = {"orderId": str(uuid.uuid4()), "items": lines, "shipping": shipping, "total": amount, **payment, **shipped}
    request.call("email", "POST", "/", {"order": done, "email": order["email"]})
    return done


if __name__ == "__main__":
    shop.serve()
