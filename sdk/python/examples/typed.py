"""What a type checker reads of the SDK: mypy --strict."""

from collections.abc import Iterator

import nearpath
from nearpath import requests


def pieces() -> Iterator[bytes]:
    yield b"EUR"


def price(request: nearpath.Request) -> nearpath.Response:
    try:
        rate = nearpath.call("currency", request.body, deadline=5, headers={"x-tenant": b"7"})
    except nearpath.Error as error:
        return nearpath.Response(f"{error.function}: {error.kind}, {error.text or ''}", status=error.status or 502)
    path: str | None = rate.path
    why: str | None = rate.obstacle
    print(path, why, rate.fields)
    return rate


def report() -> float:
    with requests.Session() as session:
        answer: requests.Response = session.get("nearpath://currency/EUR", timeout=5, stream=True)
        answer.raise_for_status()
        print(answer.headers["X-Nearpath-Path"])
    try:
        return float(requests.post("http://gateway:8080/function/currency", json={"to": "EUR"}, headers=dict(nearpath.propagated_fields())).text)
    except requests.exceptions.ReadTimeout:
        return 0.0


def later() -> str | None:
    with nearpath.call("currency", pieces(), stream=True, idle_timeout=1.0) as answer:
        print(sum(len(part) for part in answer.stream))
    first, second = nearpath.gather(("currency", b"EUR"), ("currency", "USD"))
    print(bytes(first.body), second.status)
    return nearpath.call_later("currency", b"EUR", callback="http://gateway:8080/function/ledger")


if __name__ == "__main__":
    nearpath.serve(price)
