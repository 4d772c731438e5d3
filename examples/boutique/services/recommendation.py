"""Recommends up to five products that the customer has not seen."""

import json
import pathlib
import random

import shop

IDS = [product["id"] for product in json.loads(pathlib.Path(__file__).with_name("catalogue.json").read_text())]


@shop.route("GET", "/recommendations")
def list_recommendations(request):
    seen = request.query.get("not", "").split(",")
    others = [product for product in IDS if product not in seen]
    return random.sample(others, min(5, len(others)))


if __name__ == "__main__":
    shop.serve()
