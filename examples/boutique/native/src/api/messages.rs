//! The messages, one after another. A member's number in protobuf is its place.

use prost::Message;
use serde::{Deserialize, Serialize};

/// Nothing at all.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EmptyMessage {}

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
pub(crate) struct CartItem {
    #[prost(string, tag = 1)]
    pub(crate) product_id: String,
    #[prost(uint32, tag = 2)]
    pub(crate) quantity: u32,
}

/// Product of the catalogue.
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

/// Delivery address.
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

/// Credit card of the customer.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreditCard {
    #[prost(string, tag = 1)]
    pub(crate) number: String,
    #[prost(int32, tag = 2)]
    pub(crate) year: i32,
    #[prost(int32, tag = 3)]
    pub(crate) month: i32,
    #[prost(int32, tag = 4)]
    pub(crate) cvv: i32,
}

/// Request for the supported currencies.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetSupportedCurrencies {}

/// Codes (ISO 4217).
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CurrencyList {
    #[prost(string, repeated, tag = 1)]
    pub(crate) codes: Vec<String>,
}

/// Request for a conversion.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConvertCurrency {
    #[prost(message, required, tag = 1)]
    pub(crate) from: Money,
    #[prost(string, tag = 2)]
    pub(crate) to: String,
}

/// Request for all products.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListProducts {}

/// All products.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProductList {
    #[prost(message, repeated, tag = 1)]
    pub(crate) products: Vec<Product>,
}

/// Request for a product.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetProduct {
    #[prost(string, tag = 1)]
    pub(crate) id: String,
}

/// Request for a customer's cart.
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
    pub(crate) item: CartItem,
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
pub(crate) struct CustomerCart {
    #[prost(string, tag = 1)]
    pub(crate) user: String,
    #[prost(message, repeated, tag = 2)]
    pub(crate) items: Vec<CartItem>,
}

/// Request for recommendations beyond these products.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListRecommendations {
    #[prost(string, repeated, tag = 1)]
    pub(crate) not: Vec<String>,
}

/// Products by id.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecommendationList {
    #[prost(string, repeated, tag = 1)]
    pub(crate) products: Vec<String>,
}

/// Request for advertisements of these categories.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetAds {
    #[prost(string, repeated, tag = 1)]
    pub(crate) categories: Vec<String>,
}

/// Texts.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AdList {
    #[prost(string, repeated, tag = 1)]
    pub(crate) ads: Vec<String>,
}

/// Request for the cost of shipping.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GetQuote {
    #[prost(message, repeated, tag = 1)]
    #[serde(default)]
    pub(crate) items: Vec<CartItem>,
}

/// Ship it.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShipOrder {
    #[prost(message, repeated, tag = 1)]
    pub(crate) items: Vec<CartItem>,
    #[prost(message, required, tag = 2)]
    pub(crate) address: Address,
}

/// Result of a shipment.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShipmentResult {
    #[prost(string, tag = 1)]
    pub(crate) tracking_id: String,
}

/// Take the money.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChargeCard {
    #[prost(message, required, tag = 1)]
    pub(crate) amount: Money,
    #[prost(message, required, tag = 2)]
    pub(crate) card: CreditCard,
}

/// Result of a charge.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChargeResult {
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
    pub(crate) card: CreditCard,
}

/// A line of an order.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OrderItem {
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
pub(crate) struct OrderResult {
    #[prost(string, tag = 1)]
    pub(crate) order_id: String,
    #[prost(message, repeated, tag = 2)]
    pub(crate) items: Vec<OrderItem>,
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
pub(crate) struct ConfirmOrder {
    #[prost(string, tag = 1)]
    pub(crate) email: String,
    #[prost(message, required, tag = 2)]
    pub(crate) order: OrderResult,
}

/// The customer was told.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfirmationResult {
    #[prost(string, tag = 1)]
    pub(crate) sent_to: String,
}
