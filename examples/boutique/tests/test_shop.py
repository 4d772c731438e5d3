"""Compares the calls of the shop's ten services with the call graph in README.md. `make test` runs this."""

import collections
import datetime
import http.client
import json
import pathlib
import re
import unittest
import uuid

import standin

INDEX = ["currency /supported", "productcatalog /products", "cart /carts"] + ["currency /convert"] * 9 + ["ad /ads"]
PRODUCT = ["productcatalog /products", "currency /supported", "cart /carts", "currency /convert"]
PRODUCT += ["recommendation /recommendations", "ad /ads"]
ADD = ["productcatalog /products", "cart /carts"]
VIEW = ["currency /supported", "cart /carts", "recommendation /recommendations", "shipping /quote", "currency /convert"]
NEXT_YEAR = datetime.date.today().year + 1
ORDER = {
    "email": "ann@example.com",
    "address": {"street": "1 Main Street", "city": "Ottawa", "zip": "K1A 0A1", "country": "Canada"},
    "card": {"number": "4111-1111-1111-1111", "year": NEXT_YEAR, "month": 1, "cvv": 123},
}
Answer = collections.namedtuple("Answer", "status headers body")


def order_calls(n):
    """Returns the calls of an order of n different products."""
    items = ["productcatalog /products"] * n + ["currency /convert"] * n
    tail = ["shipping /quote", "currency /convert", "payment /charge", "shipping /orders", "cart /carts", "email /"]
    after = ["recommendation /recommendations", "currency /supported"]
    return ["checkout /orders", "cart /carts", *items, *tail, *after]


class ShopTests(unittest.TestCase):
    native, stack = False, standin.BOUTIQUE / "stack.yml"

    @classmethod
    def setUpClass(cls):
        cls.shop = standin.StandIn(cls.native)
        cls.addClassCleanup(cls.shop.stop)

    def order(self, calls):
        """Returns the calls of a request for comparison, in order."""
        return calls

    def setUp(self):
        self.session = str(uuid.uuid4())
        self.currency = "EUR"
        self.shop.broken.clear()

    def ask(self, method, path, body=None, function="frontend", headers=None):
        """Sends a request from outside and records its calls in `self.made`, in order."""
        call_id = str(uuid.uuid4())
        cookies = f"shop_session-id={self.session}; shop_currency={self.currency}"
        headers = {"X-Call-Id": call_id, "Cookie": cookies, **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.shop.server.server_port, timeout=30)
        connection.request(method, f"/function/{function}{path}", body and json.dumps(body), headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, json.loads(response.read()))
        connection.close()
        made = [call for call in self.shop.calls if call.caller_id == call_id][1:]  # without the test's own
        self.made = self.order([f"{call.function} /{re.split('[/?]', call.path)[1]}" for call in made])
        return answer

    def add(self, product, quantity=1):
        return self.ask("POST", f"/cart?product_id={product}&quantity={quantity}")

    # The calls of the six kinds of request, with order and number.

    def test_the_index_makes_thirteen_calls(self):
        answer = self.ask("GET", "/")
        self.assertEqual((answer.status, self.made, len(self.made)), (200, self.order(INDEX), 13))
        self.assertEqual(len(answer.body["products"]), 9)
        self.assertTrue(all(p["price"]["currency"] == "EUR" for p in answer.body["products"]))

    def test_set_currency_makes_no_calls(self):
        answer = self.ask("POST", "/setCurrency?currency_code=JPY")
        self.assertEqual((answer.status, self.made), (200, []))
        self.assertIn("shop_currency=JPY", answer.headers["Set-Cookie"])

    def test_a_product_page_makes_six_calls(self):
        answer = self.ask("GET", "/product/OLJCESPC7Z")
        self.assertEqual((answer.status, self.made, len(self.made)), (200, self.order(PRODUCT), 6))
        self.assertNotIn("OLJCESPC7Z", answer.body["recommendations"])
        self.assertEqual(len(answer.body["recommendations"]), 5)

    def test_add_to_cart_makes_two_calls(self):
        answer = self.add("OLJCESPC7Z", 3)
        self.assertEqual((answer.status, self.made, len(self.made)), (200, self.order(ADD), 2))
        self.assertEqual(answer.body["items"], [{"productId": "OLJCESPC7Z", "quantity": 3}])

    def test_the_calls_of_the_cart_page_grow_with_its_items(self):
        for n, product in enumerate(["OLJCESPC7Z", "6E92ZMYYFZ", "L9ECAV7KIM"]):
            answer = self.ask("GET", "/cart")
            items = ["productcatalog /products"] * n + ["currency /convert"] * n
            self.assertEqual((answer.status, self.made, len(self.made)), (200, self.order(VIEW + items), 5 + 2 * n))
            self.add(product)

    def test_the_calls_of_a_checkout_grow_with_its_items(self):
        for n in (1, 2, 3):
            for product in ["OLJCESPC7Z", "6E92ZMYYFZ", "L9ECAV7KIM"][:n]:
                self.add(product)
            answer = self.ask("POST", "/cart/checkout", ORDER)
            self.assertEqual((answer.status, self.made, len(self.made)), (200, self.order(order_calls(n)), 10 + 2 * n))
            self.assertEqual(len(answer.body["order"]["items"]), n)

    def test_every_edge_is_declared(self):
        edges = standin.edges(self.stack)
        self.assertEqual(sorted(edges), ["checkout", "frontend"])
        called = {call.split()[0] for call in INDEX + PRODUCT + VIEW + ["checkout /orders"]}
        self.assertEqual(called, edges["frontend"])
        of_checkout = {call.split()[0] for call in order_calls(1)[1:-2]}
        self.assertEqual(of_checkout, edges["checkout"])

    # Carts and money.

    def test_quantities_add_up_and_an_order_empties_the_cart(self):
        self.add("6E92ZMYYFZ", 2)
        self.add("6E92ZMYYFZ", 3)
        cart = self.ask("GET", "/cart").body
        self.assertEqual([(i["product"], i["quantity"]) for i in cart["items"]], [("Mug", 5)])
        order = self.ask("POST", "/cart/checkout", ORDER).body["order"]
        self.assertEqual(order["total"], cart["total"], "the cart page showed the order's total")
        self.assertEqual(self.ask("GET", "/cart").body["items"], [])

    def test_the_total_is_exact(self):
        self.currency = "USD"
        self.add("OLJCESPC7Z", 2)  # 2 × 19.99 and 4.99 + 2 × 1.50 for shipping
        self.assertEqual(self.ask("GET", "/cart").body["total"], {"currency": "USD", "units": 47, "nanos": 970_000_000})

    def test_each_session_has_its_own_cart(self):
        self.add("OLJCESPC7Z")
        self.session = str(uuid.uuid4())
        self.assertEqual(self.ask("GET", "/cart").body["items"], [])

    def test_a_new_customer_gets_a_session(self):
        answer = self.ask("GET", "/cart", headers={"Cookie": ""})
        self.assertIn("shop_session-id=", answer.headers["Set-Cookie"])
        self.assertEqual(answer.body["total"]["currency"], "CAD")

    # Errors.

    def refused(self, status, text, *request, **options):
        answer = self.ask(*request, **options)
        self.assertEqual(answer.status, status, answer.body)
        self.assertIn(text, answer.body["error"])

    def test_wrong_input_is_refused(self):
        self.refused(404, "no product", "GET", "/product/NOPE")
        self.refused(404, "no GET /nowhere", "GET", "/nowhere")
        self.refused(405, "no POST /", "POST", "/")
        self.refused(400, "ISO 4217", "POST", "/setCurrency?currency_code=money")
        self.refused(400, "whole number", "POST", "/cart?product_id=6E92ZMYYFZ&quantity=few")
        self.refused(400, "at least 1", "POST", "/cart?product_id=6E92ZMYYFZ&quantity=0")
        self.refused(409, "cart is empty", "POST", "/cart/checkout", ORDER)
        self.refused(400, "email, address and card", "POST", "/cart/checkout", {"email": "ann@example.com"})
        self.refused(400, "not JSON", "POST", "/quote", function="shipping")

    def test_a_chunked_body_is_refused_and_ends_the_connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.shop.ports["shipping"], timeout=30)
        self.addCleanup(connection.close)
        connection.putrequest("POST", "/quote")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()  # without a body, because the response does not wait for it
        response = connection.getresponse()
        self.assertEqual((response.status, response.getheader("Connection")), (411, "close"))

    def test_a_refused_card_leaves_the_cart(self):
        self.add("6E92ZMYYFZ")
        for card, text in [
            ({"number": "4111-1111-1111-1112"}, "not valid"),
            ({"number": "3782 822463 10005"}, "Visa and Mastercard"),
            ({"year": 2020}, "expired"),
        ]:
            order = {**ORDER, "card": {**ORDER["card"], **card}}
            self.refused(400, text, "POST", "/cart/checkout", order)
        self.assertEqual(len(self.ask("GET", "/cart").body["items"]), 1)

    def test_an_unknown_currency_is_refused_with_400(self):
        self.currency = "XXX"
        self.refused(400, "no currency", "GET", "/product/6E92ZMYYFZ")

    def test_a_platform_error_is_a_502(self):
        self.shop.broken.add("recommendation")
        self.refused(502, "recommendation answered 503", "GET", "/product/6E92ZMYYFZ")

    def test_a_page_is_returned_without_advertisements(self):
        self.shop.broken.add("ad")
        answer = self.ask("GET", "/")
        self.assertEqual((answer.status, answer.body["ads"]), (200, []))

    def test_email_refuses_an_order_without_an_address(self):
        status, _, text = self.shop.answer("email", "POST", "/", {}, b'{"order": {}}')
        self.assertEqual((status, text), (500, b"no e-mail address in the order\n"))


class ReadMeTests(unittest.TestCase):
    def test_the_readme_lists_the_same_counts(self):
        text = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
        for kind, count in [("index", "13"), ("setCurrency", "0"), ("product", "6"), ("addToCart", "2")]:
            self.assertRegex(text, rf"\| {kind} \|.*\| {count} \|")
        for kind, count in [("viewCart", "5 + 2n"), ("checkout", "10 + 2n")]:
            self.assertIn(f"| {count} |", next(line for line in text.splitlines() if line.startswith(f"| {kind} |")))


if __name__ == "__main__":
    unittest.main()
