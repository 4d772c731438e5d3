"""The product catalogue: a file, read once."""

import json
import pathlib

import shop

PRODUCTS = json.loads(pathlib.Path(__file__).with_name("catalogue.json").read_text())
BY_ID = {product["id"]: product for product in PRODUCTS}


@shop.route("GET", "/products")
def list_products(_request):
    return PRODUCTS


@shop.route("GET", "/products/{}")
def get_product(_request, product_id):
    if product_id not in BY_ID:
        raise shop.Problem(404, f"no product {product_id!r}")
    return BY_ID[product_id]


if __name__ == "__main__":
    shop.serve()
