"""Stores a customer's card: its last four digits, expiry and limit. The number is not stored."""

import re

import store
import web

MAX_LIMIT_CENTS = 100_000  # default and maximum limit of a card


def luhn(number):
    """Returns whether the check digit is right (ISO/IEC 7812-1)."""
    digits = [int(digit) for digit in reversed(number)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[0::2]) + sum(doubled)) % 10 == 0


@web.route("POST")
def add_card(request):
    fields = request.json("user", "number", "expires")
    number = re.sub("[ -]", "", str(fields["number"]))
    if not re.fullmatch("[0-9]{12,19}", number) or not luhn(number):
        raise web.Problem(400, "the card number is not valid")
    if not re.fullmatch("[0-9]{4}-(0[1-9]|1[0-2])", str(fields["expires"])):
        raise web.Problem(400, "expires is a year and a month, as in 2031-07")
    limit = fields.get("limit", MAX_LIMIT_CENTS)
    if not isinstance(limit, int) or not 0 <= limit <= MAX_LIMIT_CENTS:
        raise web.Problem(400, f"limit is a whole number of cents up to {MAX_LIMIT_CENTS}")
    card = {"user": fields["user"], "last4": number[-4:], "expires": fields["expires"], "limit": limit}
    store.put(store.CARDS, fields["user"], card)
    return card


if __name__ == "__main__":
    web.serve()
