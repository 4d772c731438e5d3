//! Frontend for customers. Pages are gathered from the other services, with independent calls at
//! the same time. Cookies hold the session and the currency, as in a browser.

use std::time::Duration;

use futures_util::future::try_join_all;
use http::Method;
use serde::Deserialize;
use uuid::Uuid;

use crate::api::{
    AddItem, Address, CartItem, ConvertCurrency, CreditCard, GetAds, GetCart, GetProduct, GetQuote,
    ListProducts, Money,
};
use crate::api::{GetSupportedCurrencies, ListRecommendations, PlaceOrder};
use crate::client::PeerServices;
use crate::message::{ServiceError, ServiceRequest, ServiceResponse, percent_decode};
use crate::money::total_amount;
use crate::page::{
    CartEntry, CartFilledPage, CartPage, CurrencyPage, FrontPage, HtmlPage, OrderPage, ProductPage,
    render_page,
};

/// Not the catalogue's own, so that prices are converted.
const DEFAULT_CURRENCY: &str = "CAD";
/// A page does not wait longer for advertisements.
const AD_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn answer_request(
    request: &ServiceRequest,
    peers: &PeerServices<'_>,
) -> Result<ServiceResponse, ServiceError> {
    let visit = PageRequest::new(request, peers);
    let (path, get) = (request.path(), request.method == Method::GET);
    match path.strip_prefix("/product/") {
        Some(id) if get => return visit.product_page(&percent_decode(id)).await,
        _ => {}
    }
    match (path, get, request.method == Method::POST) {
        ("/", true, _) => visit.front_page().await,
        ("/cart", true, _) => visit.cart_page().await,
        ("/cart", _, true) => visit.add_to_cart().await,
        ("/cart/checkout", _, true) => visit.checkout().await,
        ("/setCurrency", _, true) => visit.set_currency(),
        ("/" | "/cart" | "/cart/checkout" | "/setCurrency", ..) => Err(ServiceError {
            status: 405,
            ..request.not_found()
        }),
        _ => Err(request.not_found()),
    }
}

/// Request of a customer.
struct PageRequest<'r> {
    request: &'r ServiceRequest,
    peers: &'r PeerServices<'r>,
    session: String,
    new: bool,
    currency: &'r str,
}

/// Fields of the order form.
#[derive(Deserialize)]
struct OrderForm {
    email: String,
    address: Address,
    card: CreditCard,
}

impl<'r> PageRequest<'r> {
    fn new(request: &'r ServiceRequest, peers: &'r PeerServices<'r>) -> Self {
        let known = request.cookie_value("shop_session-id");
        let new = known.is_empty();
        let session = if new {
            Uuid::new_v4().to_string()
        } else {
            known.to_owned()
        };
        let currency = match request.cookie_value("shop_currency") {
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

    fn show_page(&self, page: &impl HtmlPage) -> ServiceResponse {
        let mut response = render_page(page, self.request.html);
        if self.new {
            response.cookies.push(format!(
                "shop_session-id={}; Path=/; HttpOnly",
                self.session
            ));
        }
        response
    }

    async fn front_page(&self) -> Result<ServiceResponse, ServiceError> {
        let all = self.peers.call_service(&ListProducts {});
        let (currencies, all, items, ads) = tokio::try_join!(
            self.list_currencies(),
            all,
            self.cart_items(),
            self.list_ads(Vec::new())
        )?;
        let prices = all
            .products
            .iter()
            .map(|product| self.convert_price(product.price.clone()));
        let prices = try_join_all(prices).await?;
        let mut products = all.products;
        products
            .iter_mut()
            .zip(prices)
            .for_each(|(product, price)| product.price = price);
        Ok(self.show_page(&FrontPage {
            currencies,
            cart_size: items.len(),
            products,
            ads,
        }))
    }

    async fn product_page(&self, id: &str) -> Result<ServiceResponse, ServiceError> {
        let product = self
            .peers
            .call_service(&GetProduct { id: id.to_owned() })
            .await?;
        let (currencies, items, price, recommendations, ads) = tokio::try_join!(
            self.list_currencies(),
            self.cart_items(),
            self.convert_price(product.price.clone()),
            self.list_recommended(vec![id.to_owned()]),
            self.list_ads(product.categories.clone()),
        )?;
        Ok(self.show_page(&ProductPage {
            currencies,
            cart_size: items.len(),
            product,
            price,
            recommendations,
            ads,
        }))
    }

    async fn add_to_cart(&self) -> Result<ServiceResponse, ServiceError> {
        let quantity = self.request.query_value("quantity").parse();
        let quantity =
            quantity.map_err(|_| ServiceError::bad_request("quantity is a whole number"))?;
        let product = self
            .peers
            .call_service(&GetProduct {
                id: self.request.query_value("product_id"),
            })
            .await?;
        let item = CartItem {
            product_id: product.id,
            quantity,
        };
        let cart = self
            .peers
            .call_service(&AddItem {
                user: self.session.clone(),
                item,
            })
            .await?;
        Ok(self.show_page(&CartFilledPage(cart)))
    }

    async fn cart_page(&self) -> Result<ServiceResponse, ServiceError> {
        let (currencies, items) = tokio::try_join!(self.list_currencies(), self.cart_items())?;
        let seen = items.iter().map(|item| item.product_id.clone()).collect();
        let entries = try_join_all(items.iter().map(|item| self.cart_entry(item)));
        let (recommendations, shipping, items) = tokio::try_join!(
            self.list_recommended(seen),
            self.quote_shipping(items.clone()),
            entries
        )?;
        let costs = items
            .iter()
            .map(|entry| (&entry.price, entry.quantity))
            .chain([(&shipping, 1)]);
        let total = total_amount(costs, &shipping.currency)
            .ok_or_else(|| ServiceError::new(500, "too large a sum"))?;
        Ok(self.show_page(&CartPage {
            currencies,
            recommendations,
            items,
            shipping,
            total,
        }))
    }

    async fn checkout(&self) -> Result<ServiceResponse, ServiceError> {
        let form: serde_json::Value = serde_json::from_slice(&self.request.body)
            .map_err(|error| ServiceError::bad_request(format!("the body is not JSON: {error}")))?;
        let OrderForm {
            email,
            address,
            card,
        } = serde_json::from_value(form).map_err(|error| {
            ServiceError::bad_request(format!("an order needs email, address and card: {error}"))
        })?;
        let (user, currency) = (self.session.clone(), self.currency.to_owned());
        let order = self
            .peers
            .call_service(&PlaceOrder {
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
            tokio::try_join!(self.list_recommended(seen), self.list_currencies())?;
        Ok(self.show_page(&OrderPage {
            order,
            recommendations,
            currencies,
        }))
    }

    fn set_currency(&self) -> Result<ServiceResponse, ServiceError> {
        let code = self.request.query_value("currency_code");
        if code.len() != 3 || !code.bytes().all(|letter| letter.is_ascii_uppercase()) {
            return Err(ServiceError::bad_request(
                "currency_code is three capital letters (ISO 4217)",
            ));
        }
        let cookie = format!("shop_currency={code}; Path=/");
        let mut response = render_page(&CurrencyPage { currency: code }, self.request.html);
        response.cookies.push(cookie);
        Ok(response)
    }

    async fn list_currencies(&self) -> Result<Vec<String>, ServiceError> {
        Ok(self
            .peers
            .call_service(&GetSupportedCurrencies {})
            .await?
            .codes)
    }

    async fn cart_items(&self) -> Result<Vec<CartItem>, ServiceError> {
        Ok(self
            .peers
            .call_service(&GetCart {
                user: self.session.clone(),
            })
            .await?
            .items)
    }

    async fn convert_price(&self, from: Money) -> Result<Money, ServiceError> {
        self.peers
            .call_service(&ConvertCurrency {
                from,
                to: self.currency.to_owned(),
            })
            .await
    }

    async fn list_recommended(&self, not: Vec<String>) -> Result<Vec<String>, ServiceError> {
        Ok(self
            .peers
            .call_service(&ListRecommendations { not })
            .await?
            .products)
    }

    async fn quote_shipping(&self, items: Vec<CartItem>) -> Result<Money, ServiceError> {
        let quote = self.peers.call_service(&GetQuote { items }).await?;
        self.convert_price(quote).await
    }

    async fn cart_entry(&self, item: &CartItem) -> Result<CartEntry, ServiceError> {
        let product = self
            .peers
            .call_service(&GetProduct {
                id: item.product_id.clone(),
            })
            .await?;
        let price = self.convert_price(product.price).await?;
        Ok(CartEntry {
            product: product.name,
            quantity: item.quantity,
            price,
        })
    }

    /// A page without advertisements is better than no page.
    async fn list_ads(&self, categories: Vec<String>) -> Result<Vec<String>, ServiceError> {
        let asked = GetAds { categories };
        let answer = tokio::time::timeout(AD_TIMEOUT, self.peers.call_service(&asked)).await;
        Ok(answer
            .ok()
            .and_then(Result::ok)
            .map(|ads| ads.ads)
            .unwrap_or_default())
    }
}
