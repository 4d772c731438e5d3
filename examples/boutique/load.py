#!/usr/bin/env python3
"""Simulates customers of the shop and prints a table of their requests.

    python3 examples/boutique/load.py --url http://127.0.0.1:8080/function/frontend --users 20 --duration 8

The mix is that of Online Boutique's published load. The exit code is 1 when a request failed or none succeeded.
A response counts as failed when its status is not 200 or its body is not the requested page.
"""

import argparse
import collections
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse

# Number of visits, of 19, for each kind of request, and a part of each correct body.
WEIGHTS = {"index": 1, "setCurrency": 2, "product": 10, "addToCart": 2, "viewCart": 3, "checkout": 1}
MARKS = {
    "index": b'"products"',
    "setCurrency": b'"currency"',
    "product": b'"recommendations"',
    "addToCart": b'"items"',
    "viewCart": b'"items"',
    "checkout": b'"orderId"',
}
PRODUCTS = "0PUK6V6EV0 1YMWWN1N4O 2ZYFJ3GM2N 66VCHSJNUP 6E92ZMYYFZ 9SIQT8TOJO L9ECAV7KIM LS4PSXUNUM OLJCESPC7Z".split()
QUANTITIES = [1, 2, 3, 4, 5, 10]
CURRENCIES = ["EUR", "USD", "JPY", "CAD"]
ORDER = json.dumps(
    {
        "email": "someone@example.com",
        "address": {"street": "1 Main Street", "city": "Ottawa", "zip": "K1A 0A1", "country": "Canada"},
        "card": {"number": "4111-1111-1111-1111", "year": 2099, "month": 1, "cvv": 123},
    }
)
REQUEST_TIMEOUT = 30  # seconds

Request = collections.namedtuple("Request", "kind method path body", defaults=[""])


class Customer:
    """Chooses the requests of one customer. The same seed gives the same requests."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.session, self.currency, self.is_new = f"{self.random.getrandbits(64):016x}", "CAD", True

    def cookie(self):
        return f"shop_session-id={self.session}; shop_currency={self.currency}"

    def next_requests(self):
        """Returns the next one to three requests, at first the front page."""
        kind = "index" if self.is_new else self.random.choices(list(WEIGHTS), WEIGHTS.values())[0]
        self.is_new = False
        match kind:
            case "index":
                return [Request(kind, "GET", "/")]
            case "setCurrency":
                self.currency = self.random.choice(CURRENCIES)
                return [Request(kind, "POST", f"/setCurrency?currency_code={self.currency}")]
            case "product":
                return self.add_to_cart()[:1]
            case "addToCart":
                return self.add_to_cart()
            case "viewCart":
                return [Request(kind, "GET", "/cart")]
            case "checkout":  # with something in the cart
                return [*self.add_to_cart(), Request(kind, "POST", "/cart/checkout", ORDER)]

    def add_to_cart(self):
        """Returns requests that show a product and add it to the cart."""
        product, quantity = self.random.choice(PRODUCTS), self.random.choice(QUANTITIES)
        add = Request("addToCart", "POST", f"/cart?product_id={product}&quantity={quantity}")
        return [Request("product", "GET", f"/product/{product}"), add]


class Client:
    """Sends a customer's requests over one kept connection."""

    def __init__(self, url, customer):
        parts = urllib.parse.urlsplit(url)
        self.customer, self.base = customer, parts.path.rstrip("/")
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=REQUEST_TIMEOUT)

    def send(self, request):
        """Sends a request. Returns None for a correct response, else the cause of the failure."""
        try:
            headers = {"cookie": self.customer.cookie()}
            self.connection.request(request.method, self.base + request.path, request.body or None, headers)
            response = self.connection.getresponse()
            body = response.read()
        except TimeoutError:
            self.connection.close()
            return "timeout"
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()  # the next request opens another one
            return "no connection" if isinstance(error, ConnectionRefusedError) else "connection broken"
        if response.status != 200:
            return f"status {response.status} {response.getheader('x-nearpath-reason', '')}".rstrip()
        return None if MARKS[request.kind] in body else "unexpected body"


class Report:
    """Latencies of the answered requests by kind, and failures by kind and reason."""

    def __init__(self):
        self.latencies, self.failures = collections.defaultdict(list), collections.Counter()

    def add(self, kind, seconds, failure):
        if failure:
            self.failures[kind, failure] += 1
        else:
            self.latencies[kind].append(seconds)

    def merge(self, other):
        self.failures.update(other.failures)
        for kind, latencies in other.latencies.items():
            self.latencies[kind] += latencies

    def line(self, name, kinds):
        latencies = sorted(seconds for kind in kinds for seconds in self.latencies[kind])
        failed = sum(count for (kind, _), count in self.failures.items() if kind in kinds)
        p50, p99 = (1e3 * quantile(latencies, share) for share in (0.5, 0.99))
        return f"{name:<12} {len(latencies) + failed:>9} {p50:>9.1f} {p99:>9.1f} {failed:>9}"

    def table(self):
        """Formats one line per kind, one for all, and one per cause of failure."""
        reasons = collections.Counter()
        for (_, reason), count in self.failures.items():
            reasons[reason] += count
        head = f"{'kind':<12} {'requests':>9} {'p50 ms':>9} {'p99 ms':>9} {'failed':>9}"
        lines = [self.line(kind, [kind]) for kind in WEIGHTS] + [self.line("all", WEIGHTS)]
        return "\n".join([head, *lines, *(f"{count} × {reason}" for reason, count in sorted(reasons.items()))])

    def is_successful(self):
        return not self.failures and any(self.latencies.values())


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def run_customer(args, seed, until, report):
    """Sends requests until a time, with pauses. A failure skips the rest of a visit."""
    customer = Customer(seed)
    client = Client(args.url, customer)
    while time.monotonic() < until:
        for request in customer.next_requests():
            start = time.monotonic()
            failure = client.send(request)
            report.add(request.kind, time.monotonic() - start, failure)
            if failure:
                break
        pause = customer.random.uniform(args.wait_min, max(args.wait_min, args.wait_max))
        time.sleep(max(0.0, min(pause, until - time.monotonic())))


def run(args):
    until, reports, threads = time.monotonic() + args.duration, [], []
    for seed in range(args.users):
        reports.append(Report())
        threads.append(threading.Thread(target=run_customer, args=(args, seed, until, reports[-1])))
        threads[-1].start()
    total = Report()
    for thread, report in zip(threads, reports):
        thread.join()
        total.merge(report)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080/function/frontend", help="the shop's frontend")
    parser.add_argument("--users", type=int, default=20, metavar="N", help="customers at a time (20)")
    parser.add_argument("--wait-min", type=float, default=1, metavar="SECONDS", help="shortest pause after a visit (1)")
    parser.add_argument("--wait-max", type=float, default=10, metavar="SECONDS", help="longest pause after a visit (10)")
    parser.add_argument("--duration", type=float, default=8, metavar="SECONDS", help="how long (8)")
    report = run(parser.parse_args())
    print(report.table())
    return 0 if report.is_successful() else 1


if __name__ == "__main__":
    sys.exit(main())
