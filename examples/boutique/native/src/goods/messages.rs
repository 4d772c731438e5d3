//! The messages, one after another. A member's number in protobuf is its place.

use prost::Message;
use serde::{Deserialize, Serialize};

/// Nothing at all.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Nothing {}

/// An amount: whole units and billionths of a unit, so that nothing is lost to binary fractions.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Money {
    #[prost(string, tag = 1)]
    pub(crate) currency: String,
    #[prost(int64, tag = 2)]
    pub(crate) units: i64,
    #[prost(int64, tag = 3)]
    pub(crate) nanos: i64,
}

/// So many of a product.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    #[prost(string, tag = 1)]
    pub(crate) product_id: String,
    #[prost(uint32, tag = 2)]
    pub(crate) quantity: u32,
}

/// What is sold.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Product {
    #[prost(string, tag = 1)]
    pub(crate) id: String,
    #[prost(string, tag = 2)]
    pub(crate) name: String,
    #[prost(string, repeated, tag = 3)]
    pub(crate) categories: Vec<String>,
    #[prost(message, required, tag = 4)]
    pub(crate) price: Money,
    #[prost(string, tag = 5)]
    pub(crate) description: String,
}

/// Where to.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Address {
    #[prost(string, tag = 1)]
    pub(crate) street: String,
    #[prost(string, tag = 2)]
    pub(crate) city: String,
    #[prost(string, tag = 3)]
    pub(crate) zip: String,
    #[prost(string, tag = 4)]
    pub(crate) country: String,
}

/// Who pays.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Card {
    #[prost(string, tag = 1)]
    pub(crate) number: String,
    #[prost(int32, tag = 2)]
    pub(crate) year: i32,
    #[prost(int32, tag = 3)]
    pub(crate) month: i32,
    #[prost(int32, tag = 4)]
    pub(crate) cvv: i32,
}

/// Which currencies are there?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Supported {}

/// Codes (ISO 4217).
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Currencies {
    #[prost(string, repeated, tag = 1)]
    pub(crate) codes: Vec<String>,
}

/// What is it in another currency?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Convert {
    #[prost(message, required, tag = 1)]
    pub(crate) from: Money,
    #[prost(string, tag = 2)]
    pub(crate) to: String,
}

/// What is there?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListProducts {}

/// All products.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Products {
    #[prost(message, repeated, tag = 1)]
    pub(crate) products: Vec<Product>,
}

/// What is this?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetProduct {
    #[prost(string, tag = 1)]
    pub(crate) id: String,
}

/// What is in a customer's cart?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetCart {
    #[prost(string, tag = 1)]
    pub(crate) user: String,
}

/// Put something in.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AddItem {
    #[prost(string, tag = 1)]
    pub(crate) user: String,
    #[prost(message, required, tag = 2)]
    pub(crate) item: Item,
}

/// Take everything out.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EmptyCart {
    #[prost(string, tag = 1)]
    pub(crate) user: String,
}

/// A customer's cart, in the order in which products were added.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cart {
    #[prost(string, tag = 1)]
    pub(crate) user: String,
    #[prost(message, repeated, tag = 2)]
    pub(crate) items: Vec<Item>,
}

/// What else might please, but for these?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recommend {
    #[prost(string, repeated, tag = 1)]
    pub(crate) not: Vec<String>,
}

/// Products by id.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recommended {
    #[prost(string, repeated, tag = 1)]
    pub(crate) products: Vec<String>,
}

/// What fits these categories?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetAds {
    #[prost(string, repeated, tag = 1)]
    pub(crate) categories: Vec<String>,
}

/// Texts.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ads {
    #[prost(string, repeated, tag = 1)]
    pub(crate) ads: Vec<String>,
}

/// What does shipping cost?
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetQuote {
    #[prost(message, repeated, tag = 1)]
    #[serde(default)]
    pub(crate) items: Vec<Item>,
}

/// Ship it.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShipOrder {
    #[prost(message, repeated, tag = 1)]
    pub(crate) items: Vec<Item>,
    #[prost(message, required, tag = 2)]
    pub(crate) address: Address,
}

/// It is on its way.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shipped {
    #[prost(string, tag = 1)]
    pub(crate) tracking_id: String,
}

/// Take the money.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Charge {
    #[prost(message, required, tag = 1)]
    pub(crate) amount: Money,
    #[prost(message, required, tag = 2)]
    pub(crate) card: Card,
}

/// It was taken.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Charged {
    #[prost(string, tag = 1)]
    pub(crate) transaction_id: String,
}

/// Make an order of a cart.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlaceOrder {
    #[prost(string, tag = 1)]
    pub(crate) user: String,
    #[prost(string, tag = 2)]
    pub(crate) currency: String,
    #[prost(string, tag = 3)]
    pub(crate) email: String,
    #[prost(message, required, tag = 4)]
    pub(crate) address: Address,
    #[prost(message, required, tag = 5)]
    pub(crate) card: Card,
}

/// A line of an order.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    #[prost(string, tag = 1)]
    pub(crate) product_id: String,
    #[prost(uint32, tag = 2)]
    pub(crate) quantity: u32,
    #[prost(message, required, tag = 3)]
    pub(crate) price: Money,
}

/// An order that was placed and paid.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Order {
    #[prost(string, tag = 1)]
    pub(crate) order_id: String,
    #[prost(message, repeated, tag = 2)]
    pub(crate) items: Vec<Line>,
    #[prost(message, required, tag = 3)]
    pub(crate) shipping: Money,
    #[prost(message, required, tag = 4)]
    pub(crate) total: Money,
    #[prost(string, tag = 5)]
    pub(crate) transaction_id: String,
    #[prost(string, tag = 6)]
    pub(crate) tracking_id: String,
}

/// Tell the customer.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Confirm {
    #[prost(string, tag = 1)]
    pub(crate) email: String,
    #[prost(message, required, tag = 2)]
    pub(crate) order: Order,
}

/// The customer was told.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sent {
    #[prost(string, tag = 1)]
    pub(crate) sent_to: String,
}
