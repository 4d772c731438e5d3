"""Checks whether the customer's card covers an amount, without a payment."""

import datetime
import uuid

import store
import web


@web.route("POST")
def authorize(request):
    sale = request.json("user", "cents")
    card = store.get(store.CARDS, sale["user"])
    if card is None:
        raise web.Problem(402, f"{sale['user']} has no card here: add one with product-purchase-add-cc")
    if card["expires"] < f"{datetime.date.today():%Y-%m}":
        raise web.Problem(402, f"the card ending {card['last4']} expired in {card['expires']}")
    if sale["cents"] > card["limit"]:
        raise web.Problem(402, f"the card ending {card['last4']} does not cover {sale['cents']} cents")
    return {"authorization": str(uuid.uuid4()), "card": card["last4"]}


if __name__ == "__main__":
    web.serve()
