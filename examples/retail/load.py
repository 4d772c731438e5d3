#!/usr/bin/env python3
"""Simulates customers and photographers of the shop. Each user runs its three chains repeatedly.

A round is a photo-request, the photo-acquire of that assignment, and a product-purchase. With --singles it is one request of each
kind without a chain: database GET (f1) and POST (f7), pure GET (f10) and POST (f15). Prints one line per function, and exits with 1 after
a failed request. It needs the standard library only. The database must contain seed.sql.
"""

import argparse
import base64
import http.client
import json
import os
import random
import statistics
import sys
import threading
import time
import urllib.parse

PRODUCTS = [f"{kind}-{number}" for kind in ("boot", "coat", "hat", "bag") for number in (1, 2, 3)]
CUSTOMERS = ("ann", "bob", "cy")  # with cards that cover everything
PHOTO = base64.b64encode(random.Random(1).randbytes(450)).decode()  # 600 characters


class User(threading.Thread):
    """One user. `times` has seconds by function, `failures` statuses and texts."""

    def __init__(self, gateway, until, singles):
        super().__init__()
        self.gateway, self.until = gateway, until
        self.round = self.singles if singles else self.chains
        self.times, self.failures = {}, []

    def run(self):
        while time.monotonic() < self.until:
            self.round(random.choice(PRODUCTS))

    def singles(self, product):
        self.ask("product-catalog-api", path=f"/products?id={product}")
        self.ask("photo-register", {"id": f"user-{self.native_id}", "name": "A user", "email": "user@example.com"})
        self.ask("photo-success", path=f"/?photographer=ada&product={product}")
        sale = {"id": product, "user": "ann", "cents": 4200, "authorization": "none", "card": "1111"}
        self.ask("product-purchase-publish", sale)

    def chains(self, product):
        assigned = self.ask("photo-request", {"id": product, "name": product})
        if assigned:
            self.ask("photo-acquire", {"assignment": assigned["assignment"], "photo": PHOTO})
        self.ask("product-purchase", {"id": product, "user": random.choice(CUSTOMERS)})

    def ask(self, function, body=None, path="/"):
        """Sends a GET without a body. Returns the response, or None after a failure."""
        begin = time.monotonic()
        connection = http.client.HTTPConnection(self.gateway.hostname, self.gateway.port or 80, timeout=60)
        try:
            data, method = (None, "GET") if body is None else (json.dumps(body), "POST")
            connection.request(method, f"/function/{function}{path}", data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(f"{function}: {error!r}")
            return None
        finally:
            connection.close()
        if response.status != 200:
            self.failures.append(f"{function} answered {response.status}: {answer.decode(errors='replace').strip()}")
            return None
        self.times.setdefault(function, []).append(time.monotonic() - begin)
        return json.loads(answer)


def report(users):
    """Prints a table. Returns whether all requests succeeded."""
    print(f"{'function':<24} {'requests':>8} {'p50 ms':>8} {'p99 ms':>8}")
    for function in dict.fromkeys(function for user in users for function in user.times):
        times = [spent for user in users for spent in user.times.get(function, [])]
        cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
        print(f"{function:<24} {len(times):>8} {cuts[49] * 1e3:>8.1f} {cuts[98] * 1e3:>8.1f}")
    failures = [failure for user in users for failure in user.failures]
    print(f"failed: {len(failures)}{''.join(f'; {failure}' for failure in failures[:3])}")
    return not failures and any(user.times for user in users)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=os.environ.get("OPENFAAS_URL", "http://127.0.0.1:8080"), help="the gateway")
    parser.add_argument("--users", type=int, default=2, help="users at a time (2)")
    parser.add_argument("--duration", type=float, default=5, help="seconds (5)")
    parser.add_argument("--singles", action="store_true", help="functions without a chain instead of the chains")
    args = parser.parse_args()
    until = time.monotonic() + args.duration
    users = [User(urllib.parse.urlsplit(args.url), until, args.singles) for _ in range(args.users)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    sys.exit(0 if report(users) else 1)


if __name__ == "__main__":
    main()
