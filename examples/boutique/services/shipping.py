"""Quotes the shipping cost and ships: returns a tracking number."""

import uuid

import shop
from money import money

BASE_NANOS = 4_990_000_000  # billionths of a dollar per shipment
ITEM_NANOS = 1_500_000_000  # billionths of a dollar per item


def pieces(request):
    items = request.json().get("items", [])
    return sum(item["quantity"] for item in items)


@shop.route("POST", "/quote")
def get_quote(request):
    count = pieces(request)
    return money("USD", BASE_NANOS + ITEM_NANOS * count if count else 0)


@shop.route("POST", "/orders")
def ship_order(request):
    if not pieces(request):
        raise shop.Problem(400, "there is nothing to ship")
    return {"trackingId": uuid.uuid4().hex[:18].upper()}


if __name__ == "__main__":
    shop.serve()
