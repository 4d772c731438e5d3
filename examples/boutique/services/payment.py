"""Charges credit cards: checks them, moves no money."""

import datetime
import uuid

import shop

ACCEPTED = {"4": "Visa", "5": "Mastercard"}  # by the number's first digit


def luhn(number):
    """Returns whether the check digit is right (ISO/IEC 7812-1)."""
    digits = [int(digit) for digit in reversed(number)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[0::2]) + sum(doubled)) % 10 == 0


@shop.route("POST", "/charge")
def charge(request):
    card = request.json()["card"]
    number = card["number"].replace("-", "").replace(" ", "")
    today = datetime.date.today()
    if not number.isascii() or not number.isdigit() or not luhn(number):
        raise shop.Problem(400, "the card number is not valid")
    if number[0] not in ACCEPTED:
        raise shop.Problem(400, "only Visa and Mastercard are accepted")
    if (card["year"], card["month"]) < (today.year, today.month):
        raise shop.Problem(400, f"the card ending {number[-4:]} expired in {card['month']}/{card['year']}")
    return {"transactionId": str(uuid.uuid4())}


if __name__ == "__main__":
    shop.serve()
