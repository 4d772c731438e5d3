"""Carts, in the memory of the one instance that runs: stack.yml keeps it at one. A real shop would use a database."""

import threading

import shop

CARTS = {}  # user -> {product id: quantity}, in the order in which products were added
LOCK = threading.Lock()


def contents(user):
    items = CARTS.get(user, {})
    return {"user": user, "items": [{"productId": product, "quantity": n} for product, n in items.items()]}


@shop.route("GET", "/carts/{}")
def get_cart(_request, user):
    with LOCK:
        return contents(user)


@shop.route("POST", "/carts/{}")
def add_item(request, user):
    item = request.json()
    product, quantity = item.get("productId"), item.get("quantity")
    if not isinstance(product, str) or not isinstance(quantity, int) or quantity < 1:
        raise shop.Problem(400, "an item is a productId and a quantity of at least 1")
    with LOCK:
        items = CARTS.setdefault(user, {})
        items[product] = items.get(product, 0) + quantity
        return contents(user)


@shop.route("DELETE", "/carts/{}")
def empty_cart(_request, user):
    with LOCK:
        CARTS.pop(user, None)
    return {}


if __name__ == "__main__":
    shop.serve()
