"""The shop's frontend. It builds each page from the other services, in the order of README.md.

The session and the currency are cookies, as a browser would keep them.
"""

import http.cookies
import re
import uuid
from urllib.parse import quote

import shop
from money import total

DEFAULT_CURRENCY = "CAD"  # not the catalogue's own, so that prices are converted
AD_TIMEOUT = 1.0  # seconds: a page does not wait longer for advertisements


def cookie(request, name):
    jar = http.cookies.SimpleCookie(request.headers.get("Cookie", ""))
    return jar[name].value if name in jar else None


def user(request):
    """Returns the customer's session; a new one is set as a cookie."""
    known = cookie(request, "shop_session-id")
    if known:
        return known
    session = str(uuid.uuid4())
    request.reply_headers.append(("Set-Cookie", f"shop_session-id={session}; Path=/; HttpOnly"))
    return session


def supported_currencies(request):
    return request.call("currency", "GET", "/supported")


def product(request, product_id):
    return request.call("productcatalog", "GET", f"/products/{quote(product_id, safe='')}")


def cart_of(request, session):
    return request.call("cart", "GET", f"/carts/{quote(session, safe='')}")["items"]


def converted(request, amount):
    wanted = {"from": amount, "to": cookie(request, "shop_currency") or DEFAULT_CURRENCY}
    return request.call("currency", "POST", "/convert", wanted)


def recommended(request, seen):
    return request.call("recommendation", "GET", f"/recommendations?not={quote(','.join(seen))}")


def ads(request, categories):
    """Returns advertisements, or none after an error, because a page does not need them."""
    try:
        return request.call("ad", "GET", f"/ads?categories={quote(','.join(categories))}", timeout=AD_TIMEOUT)
    except shop.Problem:
        return []


@shop.route("GET", "/")
def index(request):
    session = user(request)
    page = {"currencies": supported_currencies(request)}
    products = request.call("productcatalog", "GET", "/products")
    page["cartSize"] = len(cart_of(request, session))
    page["products"] = [{**product, "price": converted(request, product["price"])} for product in products]
    page["ads"] = ads(request, [])
    return page


@shop.route("POST", "/setCurrency")
def set_currency(request):
    code = request.query.get("currency_code", "")
    if not re.fullmatch("[A-Z]{3}", code):
        raise shop.Problem(400, "currency_code is three capital letters (ISO 4217)")
    request.reply_headers.append(("Set-Cookie", f"shop_currency={code}; Path=/"))
    return {"currency": code}


@shop.route("GET", "/product/{}")
def product_page(request, product_id):
    session = user(request)
    shown = product(request, product_id)
    page = {"product": shown, "currencies": supported_currencies(request)}
    page["cartSize"] = len(cart_of(request, session))
    page["price"] = converted(request, shown["price"])
    page["recommendations"] = recommended(request, [product_id])
    page["ads"] = ads(request, shown["categories"])
    return page


@shop.route("POST", "/cart")
def add_to_cart(request):
    try:
        quantity = int(request.query.get("quantity", ""))
    except ValueError:
        raise shop.Problem(400, "quantity is a whole number") from None
    session = user(request)
    known = product(request, request.query.get("product_id", ""))
    item = {"productId": known["id"], "quantity": quantity}
    return request.call("cart", "POST", f"/carts/{quote(session, safe='')}", item)


@shop.route("GET", "/cart")
def view_cart(request):
    currencies, items = supported_currencies(request), cart_of(request, user(request))
    page = {"currencies": currencies, "recommendations": recommended(request, [i["productId"] for i in items])}
    page["shipping"] = converted(request, request.call("shipping", "POST", "/quote", {"items": items}))
    products = [product(request, item["productId"]) for item in items]
    prices = [converted(request, known["price"]) for known in products]
    page["items"] = [
        {"product": known["name"], "quantity": item["quantity"], "price": price}
        for item, known, price in zip(items, products, prices)
    ]
    costs = [(item["price"], item["quantity"]) for item in page["items"]] + [(page["shipping"], 1)]
    page["total"] = total(costs, page["shipping"]["currency"])
    return page


@shop.route("POST", "/cart/checkout")
def checkout(request):
    form = request.json()
    order = {key: form.get(key) for key in ("email", "address", "card")}
    if None in order.values():
        raise shop.Problem(400, "an order needs email, address and card")
    order["user"] = user(request)
    order["currency"] = cookie(request, "shop_currency") or DEFAULT_CURRENCY
    placed = request.call("checkout", "POST", "/orders", order)
    seen = [item["productId"] for item in placed["items"]]
    return {"order": placed, "recommendations": recommended(request, seen), "currencies": supported_currencies(request)}


if __name__ == "__main__":
    shop.serve()
