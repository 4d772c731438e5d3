"""Keeps a customer's card: its last four digits, when it ends and what it covers. The number itself is not kept."""

import re

import store
import web

LIMIT = 100_000  # cents that a card covers, unless its owner wants less


def luhn(number):
    """Returns whether the check digit is right (ISO/IEC 7812-1)."""
    digits = [int(digit) for digit in reversed(number)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[0::2]) + sum(doubled)) % 10 == 0


@web.route("POST")
def add_card(request):
    given = request.json("user", "number", "expires")
    number = re.sub("[ -]", "", str(given["number"]))
    if not re.fullmatch("[0-9]{12,19}", number) or not luhn(number):
        raise web.Problem(400, "the card number is not valid")
    if not re.fullmatch("[0-9]{4}-(0[1-9]|1[0-2])", str(given["expires"])):
        raise web.Problem(400, "expires is a year and a month, as in 2031-07")
    limit = given.get("limit", LIMIT)
    if not isinstance(limit, int) or not 0 <= limit <= LIMIT:
        raise web.Problem(400, f"limit is a whole number of cents up to {LIMIT}")
    card = {"user": given["user"], "last4": number[-4:], "expires": given["expires"], "limit": limit}
    store.put(store.CARDS, given["user"], card)
    return card


if __name__ == "__main__":
    web.serve()
