"""Runs the shop's tests with the native shop, whose calls are concurrent."""

import pathlib
import sys

# The tests of the Python shop, which the native shop must pass, too.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))

import standin  # noqa: E402
import test_shop  # noqa: E402


class NativeShopTests(test_shop.ShopTests):
    native, stack = True, standin.BOUTIQUE / "native/stack.yml"

    def order(self, calls):
        return sorted(calls)  # independent calls run concurrently

    test_a_chunked_body_is_refused_and_ends_the_connection = None  # the native shop reads chunked bodies

    def test_email_refuses_an_order_without_an_address(self):
        status, _, text = self.shop.answer("email", "POST", "/", {}, b'{"email": "", "order": {}}')
        self.assertEqual(status, 400, text)

    def test_a_browser_gets_html(self):
        self.add("LS4PSXUNUM")
        for path, mark in [("/", "Candle"), ("/product/LS4PSXUNUM", "Salt &amp; Pepper"), ("/cart", "Salt &amp; Pepper")]:
            status, headers, body = self.shop.answer("frontend", "GET", path, self.browser(), b"")
            self.assertEqual((status, dict(headers)["content-type"]), (200, "text/html; charset=utf-8"))
            self.assertIn(mark, body.decode())

    def browser(self):
        return {"Accept": "text/html", "Cookie": f"shop_session-id={self.session}; shop_currency=EUR"}
