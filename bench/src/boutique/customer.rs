//! What one customer does: a visit is one to three requests. Pure: the next visit follows from the seed alone.
//!
//! Weights, quantities and currencies are those of Online Boutique's published load (Locust): browsing is ten times as
//! frequent as the front page or an order. Putting something into the cart looks at the product first; ordering puts
//! something into the cart first, so the cart is never empty.

use http::Method;
use serde_json::json;

use super::Kind;
use super::dice::Dice;

const WEIGHTS: [(Kind, u64); 6] = [
    (Kind::Index, 1),
    (Kind::SetCurrency, 2),
    (Kind::Product, 10),
    (Kind::AddToCart, 2),
    (Kind::ViewCart, 3),
    (Kind::Checkout, 1),
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

/// One request of a visit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) method: Method,
    /// Below the frontend.
    pub(crate) path: String,
    pub(crate) body: String,
}

/// A customer with a session and a currency, as a browser would keep them.
#[derive(Debug, Clone)]
pub(crate) struct Customer {
    session: String,
    currency: &'static str,
    new: bool,
    pub(crate) dice: Dice,
}

impl Customer {
    /// The same seed is the same customer.
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        Self {
            session: format!("{:016x}", dice.roll()),
            currency: "CAD",
            new: true,
            dice,
        }
    }

    /// The cookies that a browser would send.
    pub(crate) fn cookie(&self) -> String {
        format!(
            "shop_session-id={}; shop_currency={}",
            self.session, self.currency
        )
    }

    /// The next visit. The first one is the front page.
    pub(crate) fn visit(&mut self) -> Vec<Step> {
        let kind = if std::mem::take(&mut self.new) {
            Kind::Index
        } else {
            self.dice.weigh(&WEIGHTS)
        };
        match kind {
            Kind::Index => vec![step(kind, Method::GET, "/")],
            Kind::SetCurrency => vec![self.set_currency()],
            Kind::Product => vec![self.look().0],
            Kind::AddToCart => self.take(),
            Kind::ViewCart => vec![step(kind, Method::GET, "/cart")],
            Kind::Checkout => self.take().into_iter().chain([order()]).collect(),
        }
    }

    fn set_currency(&mut self) -> Step {
        self.currency = self.dice.pick(&CURRENCIES);
        step(
            Kind::SetCurrency,
            Method::POST,
            &format!("/setCurrency?currency_code={}", self.currency),
        )
    }

    fn look(&mut self) -> (Step, &'static str) {
        let product = self.dice.pick(&PRODUCTS);
        (
            step(Kind::Product, Method::GET, &format!("/product/{product}")),
            product,
        )
    }

    fn take(&mut self) -> Vec<Step> {
        let ((look, product), quantity) = (self.look(), self.dice.pick(&QUANTITIES));
        let path = format!("/cart?product_id={product}&quantity={quantity}");
        vec![look, step(Kind::AddToCart, Method::POST, &path)]
    }
}

fn step(kind: Kind, method: Method, path: &str) -> Step {
    Step {
        kind,
        method,
        path: path.to_owned(),
        body: String::new(),
    }
}

fn order() -> Step {
    let body = json!({
        "email": "someone@example.com",
        "address": { "street": "1 Main Street", "city": "Ottawa", "zip": "K1A 0A1", "country": "Canada" },
        "card": { "number": "4111-1111-1111-1111", "year": 2099, "month": 1, "cvv": 123 },
    });
    Step {
        body: body.to_string(),
        ..step(Kind::Checkout, Method::POST, "/cart/checkout")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn visits_keep_the_weights() {
        let mut customer = Customer::new(7);
        assert_eq!(
            customer.visit()[0].kind,
            Kind::Index,
            "everybody starts at the front page"
        );
        let mut kinds = BTreeMap::<Kind, u32>::new();
        for step in (0..19_000).flat_map(|_| customer.visit()) {
            *kinds.entry(step.kind).or_default() += 1;
        }
        // Out of 19 visits: 10 look at a product, 3 more do so on their way to the cart; 3 fill the cart.
        for (kind, expected) in Kind::ALL
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
    fn an_order_has_something_in_its_cart() {
        let mut customer = Customer::new(3);
        let orders = (0..2_000)
            .map(|_| customer.visit())
            .filter(|visit| visit.last().unwrap().kind == Kind::Checkout);
        let mut seen = 0;
        for visit in orders {
            let kinds: Vec<_> = visit.iter().map(|step| step.kind).collect();
            assert_eq!(kinds, [Kind::Product, Kind::AddToCart, Kind::Checkout]);
            let id = visit[0].path.strip_prefix("/product/").unwrap();
            assert!(visit[1].path.contains(id), "what was looked at is taken");
            seen += 1;
        }
        assert!(seen > 50, "{seen}");
    }
}
