"""Compares calls and database connections of the shop's sixteen functions with README.md, on a real PostgreSQL.

`make test-python` runs this.
"""

import collections
import concurrent.futures
import http.client
import json
import re
import unittest
import uuid

import fixture

Answer = collections.namedtuple("Answer", "status body")

REQUEST = ["photo-assign", "photo-message", "photo-record"]
ACQUIRE = ["photo-receive", "photo-success", "photo-report"]
PURCHASE = ["product-purchase-get-price", "product-purchase-authorize-cc", "product-purchase-publish"]
BOOT = {"id": "boot-1", "name": "Hiking boot"}
COAT = {"id": "coat-9", "category": "coats", "name": "Cape", "price": 4200}


class RetailTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fixture = fixture.Shop()
        cls.addClassCleanup(cls.fixture.stop)

    def setUp(self):
        self.fixture.broken.clear()
        self.fixture.database.seed()

    def ask(self, function, body=None, path="/", calls=None):
        """Sends a GET without a body. Records the callees in `self.made`, the database users in `self.accessed`."""
        call_id, before = str(uuid.uuid4()), len(self.fixture.database.accesses())
        connection = http.client.HTTPConnection("127.0.0.1", self.fixture.server.server_port, timeout=30)
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", f"/function/{function}{path}", data, {"X-Call-Id": call_id})
        response = connection.getresponse()
        answer = Answer(response.status, json.loads(response.read()))
        connection.close()
        made = self.fixture.wait_called(call_id, 1 if calls is None else calls + 1)[1:]  # without the test's own
        self.made = [call.function for call in made]
        self.accessed = self.fixture.database.accesses()[before:]
        return answer

    def request_ok(self, function, body=None, path="/", calls=None):
        """Sends a request that must succeed and returns its result."""
        answer = self.ask(function, body, path, calls)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.body

    def photographer(self, name):
        return self.fixture.database.sql(f"SELECT value FROM photographers WHERE key = '{name}'")[0]

    def rows(self, table):
        return self.fixture.database.sql(f"SELECT count(*) FROM {table}")[0]

    # The three chains, with the order of calls and the database connections.

    def test_a_photo_request_makes_three_calls(self):
        assigned = self.request_ok("photo-request", BOOT, calls=3)
        self.assertCountEqual(self.made, REQUEST)  # mail and record are concurrent
        self.assertEqual(self.made[0], "photo-assign")
        self.assertEqual(self.accessed, ["photo-assign"] * 2 + ["photo-record"])
        self.assertEqual(assigned["product"], BOOT)
        self.assertEqual(self.photographer(assigned["photographer"]["id"])["open"], [assigned["assignment"]])
        self.assertEqual(self.rows("photo_assignments"), 1)

    def test_acquiring_a_photo_makes_three_calls(self):
        assigned = self.request_ok("photo-request", BOOT)
        done = self.request_ok("photo-acquire", {"assignment": assigned["assignment"], "photo": "aGVsbG8="})
        self.assertEqual(self.made, ACQUIRE)
        self.assertEqual(self.accessed, ["photo-receive"] * 2 + ["photo-report"] * 3)
        self.assertEqual((done["accepted"], done["done"], done["product"]), (True, 1, "boot-1"))
        self.assertEqual(self.photographer(done["photographer"])["open"], [])
        self.assertEqual((self.rows("photo_assignments"), self.rows("stored_photos")), (0, 1))

    def test_a_purchase_makes_three_calls(self):
        sold = self.request_ok("product-purchase", {"id": "boot-1", "user": "ann"})
        self.assertEqual(self.made, PURCHASE)
        self.assertEqual(self.accessed, PURCHASE[:2])
        self.assertEqual((sold["event"], sold["cents"], sold["card"]), ("purchased", 14900, "1111"))

    def test_every_edge_is_declared(self):
        wanted = {"photo-request": set(REQUEST), "photo-acquire": set(ACQUIRE), "product-purchase": set(PURCHASE)}
        self.assertEqual(fixture.standin.edges(fixture.RETAIL / "stack.yml"), wanted)
        self.assertEqual(len(fixture.standin.functions(fixture.RETAIL / "stack.yml")), 16)

    # Functions without a chain.

    def test_the_catalogue_is_filled_and_read(self):
        self.assertEqual(self.request_ok("product-catalog-api", path="/categories"), ["bags", "boots", "coats", "hats"])
        self.assertEqual(self.accessed, ["product-catalog-api"])
        self.request_ok("product-catalog-builder", COAT, "/product")
        self.assertEqual(self.accessed, ["product-catalog-builder"] * 3)
        self.request_ok("product-catalog-builder", {"id": "coat-9", "image": "cape.jpg"}, "/image")
        self.assertEqual(self.accessed, ["product-catalog-builder"] * 2)
        self.assertEqual(self.request_ok("product-catalog-api", path="/products?id=coat-9")["image"], "cape.jpg")
        coats = self.request_ok("product-catalog-api", path="/products?category=coats")
        self.assertEqual([coat["id"] for coat in coats], ["coat-1", "coat-2", "coat-3", "coat-9"])
        self.assertEqual(len(self.request_ok("product-catalog-api", path="/products")), 13)
        self.assertEqual(self.request_ok("product-purchase", {"id": "coat-9", "user": "ann"})["cents"], 4200)

    def test_a_card_is_added_and_its_number_is_not_kept(self):
        self.assertEqual(self.ask("product-purchase", {"id": "hat-1", "user": "new"}).status, 402)
        self.request_ok("product-purchase-add-cc", {"user": "new", "number": "5500 0000 0000 0004", "expires": "2099-01"})
        self.assertEqual(self.accessed, ["product-purchase-add-cc"])
        self.assertEqual(self.request_ok("product-purchase", {"id": "hat-1", "user": "new"})["card"], "0004")
        self.assertNotIn("5500", self.fixture.database.sql("SELECT value::text FROM credit_cards WHERE key = 'new'")[0])

    def test_a_photographer_is_registered(self):
        self.request_ok("photo-register", {"id": "abe", "name": "Abe", "email": "abe@example.com"})
        self.assertEqual(self.accessed, ["photo-register"])
        self.assertEqual(self.photographer("abe")["open"], [])

    # Assignments.

    def test_a_photo_request_sends_a_mail(self):
        assigned = self.request_ok("photo-request", BOOT, calls=3)
        mail = f"mail to {assigned['photographer']['email']}: .* assignment {assigned['assignment']}\n"
        self.fixture.wait_logged("photo-message", mail)

    def test_a_mail_that_cannot_be_sent_does_not_stop_a_request(self):
        self.fixture.broken.add("photo-message")
        self.request_ok("photo-request", BOOT, calls=3)
        self.fixture.wait_logged("photo-request", "notification failed: photo-message answered 503")

    def test_five_photographers_share_the_work(self):
        names = {self.request_ok("photo-request", BOOT)["photographer"]["id"] for _ in range(5)}
        self.assertEqual(names, {"ada", "ben", "cleo", "dov", "eva"})

    def test_requests_at_the_same_time_lose_no_assignment(self):
        with concurrent.futures.ThreadPoolExecutor(8) as customers:
            answers = list(customers.map(lambda _: self.fixture.send("photo-assign", {"product": BOOT}), range(16)))
        given = sorted(answer["assignment"] for status, answer in answers if status == 200)
        held = self.fixture.database.sql("SELECT jsonb_array_elements_text(value->'open') FROM photographers")
        self.assertEqual((given, {status for status, _ in answers} - {503}), (sorted(held), {200}))

    def test_a_photo_that_is_reported_twice_counts_once(self):
        assigned = self.request_ok("photo-request", BOOT)
        report = {"assignment": assigned["assignment"], "photographer": assigned["photographer"]["id"]}
        with concurrent.futures.ThreadPoolExecutor(4) as photographers:
            answers = list(photographers.map(lambda _: self.fixture.send("photo-report", report), range(4)))
        self.assertEqual(sorted(status for status, _ in answers), [200, 409, 409, 409])
        self.assertEqual(self.photographer(report["photographer"])["done"], 1)

    # Errors.

    def refused(self, status, text, *request, **options):
        answer = self.ask(*request, **options)
        self.assertEqual(answer.status, status, answer.body)
        self.assertIn(text, answer.body["error"])

    def test_wrong_input_is_refused(self):
        self.refused(400, "lacks name", "photo-request", {"id": "boot-1"})
        self.refused(400, "lacks user", "product-purchase", {"id": "boot-1"})
        self.refused(400, "is no key", "product-purchase", {"id": 7, "user": "ann"})
        self.refused(400, "lacks id", "photo-register", [])
        self.refused(400, "not valid", "product-purchase-add-cc", {"user": "x", "number": "4111 1111 1111 1112", "expires": "2099-01"})
        self.refused(400, "year and a month", "product-purchase-add-cc", {"user": "x", "number": "4111 1111 1111 1111", "expires": "1/99"})
        self.refused(400, "cents", "product-catalog-builder", {**COAT, "price": "4200"}, "/product")
        self.refused(404, "no product", "product-catalog-api", path="/products?id=none")
        self.refused(404, "no GET /nowhere", "product-catalog-api", path="/nowhere")
        self.refused(405, "no GET /", "photo-request")
        self.refused(404, "no assignment", "photo-acquire", {"assignment": "none", "photo": "x"})
        self.refused(404, "no price", "product-purchase", {"id": "none", "user": "ann"})

    def test_a_refused_card_ends_the_chain(self):
        for user, text in [("unknown", "has no card"), ("dee", "expired"), ("flo", "does not cover")]:
            self.refused(402, text, "product-purchase", {"id": "boot-1", "user": user})
            self.assertEqual(self.made, PURCHASE[:2])

    def test_a_photo_request_without_photographers_is_refused(self):
        self.fixture.database.sql("DELETE FROM photographers")
        self.refused(409, "no photographer", "photo-request", BOOT)
        self.assertEqual(self.made, ["photo-assign"])

    def test_a_platform_error_is_a_502(self):
        self.fixture.broken.add("photo-success")
        assigned = self.request_ok("photo-request", BOOT)
        self.refused(502, "photo-success answered 503", "photo-acquire", {"assignment": assigned["assignment"], "photo": "x"})

    def test_a_missing_table_is_reported(self):
        self.fixture.database.sql("DROP TABLE product_price")
        self.refused(502, "load seed.sql", "product-purchase", {"id": "boot-1", "user": "ann"})

    def test_a_failed_access_leaves_no_connection(self):
        self.fixture.database.sql("ALTER TABLE photo_assignments ADD CONSTRAINT never CHECK (false)")
        self.assertEqual(self.ask("photo-record", {"assignment": "x", "photographer": {"id": "ada"}, "product": BOOT}).status, 500)
        self.fixture.database.wait_until("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'photo-record'", 0)


class ReadMeTests(unittest.TestCase):
    def setUp(self):
        text = (fixture.RETAIL / "README.md").read_text()
        self.rows = re.findall(r"^\| (f\d+) \| ([a-z-]+)(?: → ([^|]+))? \|.*\| ([^|]+) \|$", text, re.MULTILINE)

    def test_the_readme_lists_every_function_and_edge(self):
        stack, names = fixture.RETAIL / "stack.yml", {number: name for number, name, _, _ in self.rows}
        self.assertEqual(sorted(names.values()), sorted(function.name for function in fixture.standin.functions(stack)))
        edges = {name: {names[number] for number in callees.split(", ")} for _, name, callees, _ in self.rows if callees}
        self.assertEqual(edges, fixture.standin.edges(stack))

    def test_the_readme_lists_the_tested_connections(self):
        listed = {name: count for _, name, _, count in self.rows}
        none = ["photo-request", "photo-message", "photo-acquire", "photo-success", "product-purchase", "product-purchase-publish"]
        one = ["photo-record", "photo-register", "product-catalog-api", *PURCHASE[:2], "product-purchase-add-cc"]
        more = {"photo-assign": "2", "photo-receive": "2", "photo-report": "3", "product-catalog-builder": "3 or 2"}
        self.assertEqual(listed, {**dict.fromkeys(none, "0"), **dict.fromkeys(one, "1"), **more})


if __name__ == "__main__":
    unittest.main()
