//! What customers talk to. It gathers every page from the other services, and asks at once for what does not need each
//! other. The session and the currency are cookies, as a browser would keep them.

use std::time::Duration;

use futures_util::future::try_join_all;
use http::Method;
use serde::Deserialize;
use uuid::Uuid;

use crate::goods::{
    AddItem, Address, Card, Convert, GetAds, GetCart, GetProduct, GetQuote, Item, ListProducts,
    Money,
};
use crate::goods::{PlaceOrder, Recommend, Supported};
use crate::line::Peers;
use crate::money::total;
use crate::page::{CartPage, Chosen, Entry, Filled, Front, Page, ProductPage, Thanks, render};
use crate::words::{Problem, Request, Response, decoded};

/// Not the catalogue's own, so that prices are converted.
const DEFAULT_CURRENCY: &str = "CAD";
/// A page does not wait longer for advertisements.
const AD_PATIENCE: Duration = Duration::from_secs(1);

pub(super) async fn answer(request: &Request, peers: &Peers<'_>) -> Result<Response, Problem> {
    let visit = Visit::new(request, peers);
    let (path, get) = (request.path(), request.method == Method::GET);
    match path.strip_prefix("/product/") {
        Some(id) if get => return visit.product(&decoded(id)).await,
        _ => {}
    }
    match (path, get, request.method == Method::POST) {
        ("/", true, _) => visit.front().await,
        ("/cart", true, _) => visit.cart().await,
        ("/cart", _, true) => visit.add().await,
        ("/cart/checkout", _, true) => visit.checkout().await,
        ("/setCurrency", _, true) => visit.set_currency(),
        ("/" | "/cart" | "/cart/checkout" | "/setCurrency", ..) => Err(Problem {
            status: 405,
            ..request.unknown()
        }),
        _ => Err(request.unknown()),
    }
}

/// One request of a customer.
struct Visit<'r> {
    request: &'r Request,
    peers: &'r Peers<'r>,
    session: String,
    new: bool,
    currency: &'r str,
}

/// What an order form says.
#[derive(Deserialize)]
struct Form {
    email: String,
    address: Address,
    card: Card,
}

impl<'r> Visit<'r> {
    fn new(request: &'r Request, peers: &'r Peers<'r>) -> Self {
        let known = request.cookie("shop_session-id");
        let new = known.is_empty();
        let session = if new {
            Uuid::new_v4().to_string()
        } else {
            known.to_owned()
        };
        let currency = match request.cookie("shop_currency") {
            "" => DEFAULT_CURRENCY,
            code => code,
        };
        Self {
            request,
            peers,
            session,
            new,
            currency,
        }
    }

    fn show(&self, page: &impl Page) -> Response {
        let mut response = render(page, self.request.html);
        if self.new {
            response.cookies.push(format!(
                "shop_session-id={}; Path=/; HttpOnly",
                self.session
            ));
        }
        response
    }

    async fn front(&self) -> Result<Response, Problem> {
        let all = self.peers.call(&ListProducts {});
        let (currencies, all, items, ads) =
            tokio::try_join!(self.currencies(), all, self.items(), self.ads(Vec::new()))?;
        let prices = all
            .products
            .iter()
            .map(|product| self.converted(product.price.clone()));
        let prices = try_join_all(prices).await?;
        let mut products = all.products;
        products
            .iter_mut()
            .zip(prices)
            .for_each(|(product, price)| product.price = price);
        Ok(self.show(&Front {
            currencies,
            cart_size: items.len(),
            products,
            ads,
        }))
    }

    async fn product(&self, id: &str) -> Result<Response, Problem> {
        let product = self.peers.call(&GetProduct { id: id.to_owned() }).await?;
        let (currencies, items, price, recommendations, ads) = tokio::try_join!(
            self.currencies(),
            self.items(),
            self.converted(product.price.clone()),
            self.recommended(vec![id.to_owned()]),
            self.ads(product.categories.clone()),
        )?;
        Ok(self.show(&ProductPage {
            currencies,
            cart_size: items.len(),
            product,
            price,
            recommendations,
            ads,
        }))
    }

    async fn add(&self) -> Result<Response, Problem> {
        let quantity = self.request.query("quantity").parse();
        let quantity = quantity.map_err(|_| Problem::wrong("quantity is a whole number"))?;
        let product = self
            .peers
            .call(&GetProduct {
                id: self.request.query("product_id"),
            })
            .await?;
        let item = Item {
            product_id: product.id,
            quantity,
        };
        let cart = self
            .peers
            .call(&AddItem {
                user: self.session.clone(),
                item,
            })
            .await?;
        Ok(self.show(&Filled(cart)))
    }

    async fn cart(&self) -> Result<Response, Problem> {
        let (currencies, items) = tokio::try_join!(self.currencies(), self.items())?;
        let seen = items.iter().map(|item| item.product_id.clone()).collect();
        let entries = try_join_all(items.iter().map(|item| self.entry(item)));
        let (recommendations, shipping, items) = tokio::try_join!(
            self.recommended(seen),
            self.shipping(items.clone()),
            entries
        )?;
        let costs = items
            .iter()
            .map(|entry| (&entry.price, entry.quantity))
            .chain([(&shipping, 1)]);
        let total =
            total(costs, &shipping.currency).ok_or_else(|| Problem::new(500, "too large a sum"))?;
        Ok(self.show(&CartPage {
            currencies,
            recommendations,
            items,
            shipping,
            total,
        }))
    }

    async fn checkout(&self) -> Result<Response, Problem> {
        let form: serde_json::Value = serde_json::from_slice(&self.request.body)
            .map_err(|error| Problem::wrong(format!("the body is not JSON: {error}")))?;
        let Form {
            email,
            address,
            card,
        } = serde_json::from_value(form).map_err(|error| {
            Problem::wrong(format!("an order needs email, address and card: {error}"))
        })?;
        let (user, currency) = (self.session.clone(), self.currency.to_owned());
        let order = self
            .peers
            .call(&PlaceOrder {
                user,
                currency,
                email,
                address,
                card,
            })
            .await?;
        let seen = order
            .items
            .iter()
            .map(|line| line.product_id.clone())
            .collect();
        let (recommendations, currencies) =
            tokio::try_join!(self.recommended(seen), self.currencies())?;
        Ok(self.show(&Thanks {
            order,
            recommendations,
            currencies,
        }))
    }

    fn set_currency(&self) -> Result<Response, Problem> {
        let code = self.request.query("currency_code");
        if code.len() != 3 || !code.bytes().all(|letter| letter.is_ascii_uppercase()) {
            return Err(Problem::wrong(
                "currency_code is three capital letters (ISO 4217)",
            ));
        }
        let cookie = format!("shop_currency={code}; Path=/");
        let mut response = render(&Chosen { currency: code }, self.request.html);
        response.cookies.push(cookie);
        Ok(response)
    }

    async fn currencies(&self) -> Result<Vec<String>, Problem> {
        Ok(self.peers.call(&Supported {}).await?.codes)
    }

    async fn items(&self) -> Result<Vec<Item>, Problem> {
        Ok(self
            .peers
            .call(&GetCart {
                user: self.session.clone(),
            })
            .await?
            .items)
    }

    async fn converted(&self, from: Money) -> Result<Money, Problem> {
        self.peers
            .call(&Convert {
                from,
                to: self.currency.to_owned(),
            })
            .await
    }

    async fn recommended(&self, not: Vec<String>) -> Result<Vec<String>, Problem> {
        Ok(self.peers.call(&Recommend { not }).await?.products)
    }

    async fn shipping(&self, items: Vec<Item>) -> Result<Money, Problem> {
        let quote = self.peers.call(&GetQuote { items }).await?;
        self.converted(quote).await
    }

    async fn entry(&self, item: &Item) -> Result<Entry, Problem> {
        let product = self
            .peers
            .call(&GetProduct {
                id: item.product_id.clone(),
            })
            .await?;
        let price = self.converted(product.price).await?;
        Ok(Entry {
            product: product.name,
            quantity: item.quantity,
            price,
        })
    }

    /// A page without advertisements is better than no page.
    async fn ads(&self, categories: Vec<String>) -> Result<Vec<String>, Problem> {
        let asked = GetAds { categories };
        let answer = tokio::time::timeout(AD_PATIENCE, self.peers.call(&asked)).await;
        Ok(answer
            .ok()
            .and_then(Result::ok)
            .map(|ads| ads.ads)
            .unwrap_or_default())
    }
}
