"""Amounts of money: a currency, whole units, and billionths of a unit, so that nothing is lost to binary fractions."""

BILLION = 1_000_000_000


def money(currency, nanos):
    """An amount given in billionths."""
    return {"currency": currency, "units": nanos // BILLION, "nanos": nanos % BILLION}


def nanos(amount):
    """An amount in billionths of its unit."""
    return amount["units"] * BILLION + amount["nanos"]


def total(amounts, currency):
    """The sum of (amount, quantity) pairs that are all in `currency`."""
    assert all(amount["currency"] == currency for amount, _ in amounts), "amounts of different currencies"
    return money(currency, sum(nanos(amount) * quantity for amount, quantity in amounts))
