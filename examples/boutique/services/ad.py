"""Returns advertisements of the customer's categories, else two at random."""

import random

import shop

ADS = {
    "accessories": "Watch the time: 20 % off every watch.",
    "clothing": "Tank tops, two for the price of one.",
    "footwear": "Loafers that last. Free second sole.",
    "hair": "Hairdryer for travellers: 50 % off.",
    "decor": "Candle holders for long evenings, 30 % off.",
    "kitchen": "Mugs: buy two, the second one is free.",
}


@shop.route("GET", "/ads")
def get_ads(request):
    wanted = request.query.get("categories", "").split(",")
    matching = [text for category, text in ADS.items() if category in wanted]
    return matching or random.sample(list(ADS.values()), 2)


if __name__ == "__main__":
    shop.serve()
