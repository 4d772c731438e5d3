//! Model of a customer: a visit is one to three requests. Pure: the next visit follows from the
//! seed alone.
//!
//! Weights, quantities and currencies are those of Online Boutique's published load (Locust).
//! Browsing is ten times as frequent as the front page or an order. A visit that fills the cart
//! first shows the product. An order first fills the cart, so the cart is never empty.

use http::Method;
use serde_json::json;

use super::RequestKind;
use super::rng::SplitMixRng;

const REQUEST_WEIGHTS: [(RequestKind, u64); 6] = [
    (RequestKind::Index, 1),
    (RequestKind::SetCurrency, 2),
    (RequestKind::Product, 10),
    (RequestKind::AddToCart, 2),
    (RequestKind::ViewCart, 3),
    (RequestKind::Checkout, 1),
];
const PRODUCTS: [&str; 9] = [
    "0PUK6V6EV0",
    "1YMWWN1N4O",
    "2ZYFJ3GM2N",
    "66VCHSJNUP",
    "6E92ZMYYFZ",
    "9SIQT8TOJO",
    "L9ECAV7KIM",
    "LS4PSXUNUM",
    "OLJCESPC7Z",
];
const QUANTITIES: [u32; 6] = [1, 2, 3, 4, 5, 10];
const CURRENCIES: [&str; 4] = ["EUR", "USD", "JPY", "CAD"];

/// Request of a customer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShopRequest {
    pub(crate) kind: RequestKind,
    pub(crate) method: Method,
    /// Path below the frontend.
    pub(crate) path: String,
    pub(crate) body: String,
}

/// A customer with a session and a currency, like a browser.
#[derive(Debug, Clone)]
pub(crate) struct ShopCustomer {
    session: String,
    currency: &'static str,
    new: bool,
    pub(crate) rng: SplitMixRng,
}

impl ShopCustomer {
    /// Creates a customer; the same seed makes the same requests.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = SplitMixRng::new(seed);
        Self {
            // Sessions differ by seed, so no two customers share a cart.
            session: format!("{:016x}", rng.next_u64()),
            // The frontend's default, which is not the catalogue's currency: prices are converted
            // from the first page on.
            currency: "CAD",
            new: true,
            rng,
        }
    }

    /// Returns the cookies that a browser would send.
    pub(crate) fn cookie_header(&self) -> String {
        format!(
            "shop_session-id={}; shop_currency={}",
            self.session, self.currency
        )
    }

    /// Returns the requests of the next visit. The first visit is the front page.
    pub(crate) fn next_requests(&mut self) -> Vec<ShopRequest> {
        let kind = if std::mem::take(&mut self.new) {
            RequestKind::Index
        } else {
            self.rng.pick_weighted(&REQUEST_WEIGHTS)
        };
        match kind {
            RequestKind::Index => vec![shop_request(kind, Method::GET, "/")],
            RequestKind::SetCurrency => vec![self.set_currency()],
            RequestKind::Product => vec![self.view_product().0],
            RequestKind::AddToCart => self.add_to_cart(),
            RequestKind::ViewCart => vec![shop_request(kind, Method::GET, "/cart")],
            RequestKind::Checkout => self
                .add_to_cart()
                .into_iter()
                .chain([checkout_request()])
                .collect(),
        }
    }

    fn set_currency(&mut self) -> ShopRequest {
        // Kept for the cookie of all later requests, as a browser would.
        self.currency = self.rng.pick_one(&CURRENCIES);
        shop_request(
            RequestKind::SetCurrency,
            Method::POST,
            &format!("/setCurrency?currency_code={}", self.currency),
        )
    }

    fn view_product(&mut self) -> (ShopRequest, &'static str) {
        let product = self.rng.pick_one(&PRODUCTS);
        (
            shop_request(
                RequestKind::Product,
                Method::GET,
                &format!("/product/{product}"),
            ),
            product,
        )
    }

    fn add_to_cart(&mut self) -> Vec<ShopRequest> {
        let ((look, product), quantity) = (self.view_product(), self.rng.pick_one(&QUANTITIES));
        let path = format!("/cart?product_id={product}&quantity={quantity}");
        vec![
            look,
            shop_request(RequestKind::AddToCart, Method::POST, &path),
        ]
    }
}

fn shop_request(kind: RequestKind, method: Method, path: &str) -> ShopRequest {
    ShopRequest {
        kind,
        method,
        path: path.to_owned(),
        body: String::new(),
    }
}

fn checkout_request() -> ShopRequest {
    let body = json!({
        "email": "someone@example.com",
        "address": { "street": "1 Main Street", "city": "Ottawa", "zip": "K1A 0A1", "country": "Canada" },
        // The usual test number: its check digit is right, so the payment service accepts it.
        "card": { "number": "4111-1111-1111-1111", "year": 2099, "month": 1, "cvv": 123 },
    });
    ShopRequest {
        body: body.to_string(),
        ..shop_request(RequestKind::Checkout, Method::POST, "/cart/checkout")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn visits_follow_the_weights() {
        let mut customer = ShopCustomer::new(7);
        assert_eq!(
            customer.next_requests()[0].kind,
            RequestKind::Index,
            "every customer starts at the front page"
        );
        let mut kinds = BTreeMap::<RequestKind, u32>::new();
        for step in (0..19_000).flat_map(|_| customer.next_requests()) {
            *kinds.entry(step.kind).or_default() += 1;
        }
        // Out of 19 visits: 10 look at a product, 3 more do so on their way to the cart; 3 fill the cart.
        for (kind, expected) in RequestKind::ALL
            .iter()
            .zip([1_000, 2_000, 13_000, 3_000, 3_000, 1_000_u32])
        {
            assert!(
                kinds[kind].abs_diff(expected) < expected / 5,
                "{kind:?}: {} of {expected}",
                kinds[kind]
            );
        }
    }

    #[test]
    fn an_order_has_a_filled_cart() {
        let mut customer = ShopCustomer::new(3);
        let orders = (0..2_000)
            .map(|_| customer.next_requests())
            .filter(|visit| visit.last().unwrap().kind == RequestKind::Checkout);
        let mut seen = 0;
        for visit in orders {
            let kinds: Vec<_> = visit.iter().map(|step| step.kind).collect();
            assert_eq!(
                kinds,
                [
                    RequestKind::Product,
                    RequestKind::AddToCart,
                    RequestKind::Checkout
                ]
            );
            let id = visit[0].path.strip_prefix("/product/").unwrap();
            assert!(visit[1].path.contains(id), "what was looked at is taken");
            seen += 1;
        }
        assert!(seen > 50, "{seen}");
    }
}
