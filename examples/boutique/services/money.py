"""Amounts of money: a currency, whole units, and billionths of a unit, to avoid rounding of binary fractions."""

BILLION = 1_000_000_000


def money(currency, nanos):
    """Returns an amount from billionths of a unit."""
    return {"currency": currency, "units": nanos // BILLION, "nanos": nanos % BILLION}


def nanos(amount):
    """Returns an amount in billionths of its unit."""
    return amount["units"] * BILLION + amount["nanos"]


def total(amounts, currency):
    """Sums (amount, quantity) pairs in `currency`."""
    assert all(amount["currency"] == currency for amount, _ in amounts), "amounts of different currencies"
    return money(currency, sum(nanos(amount) * quantity for amount, quantity in amounts))
