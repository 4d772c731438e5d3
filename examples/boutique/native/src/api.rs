//! Messages between services: each one once, with its JSON names and its protobuf numbers.

use bytes::Bytes;
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::messages::*;
use crate::services::ShopService;

mod messages;

/// Encodings of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MessageEncoding {
    Json,
    Protobuf,
}

/// A message of the shop.
pub(crate) trait ShopMessage:
    prost::Message + Serialize + DeserializeOwned + Default
{
}

impl<T: prost::Message + Serialize + DeserializeOwned + Default> ShopMessage for T {}

/// Call of a service to another.
pub(crate) trait ServiceCall: ShopMessage {
    /// Message of the answer.
    type Answer: ShopMessage;
    /// Service that answers.
    const TO: ShopService;
    /// Below the service, for HTTP and memory.
    const PATH: &'static str;
    /// With the service, for gRPC.
    const RPC: &'static str;
}

impl MessageEncoding {
    pub(crate) fn encode_message<T: ShopMessage>(self, message: &T) -> Bytes {
        match self {
            Self::Json => serde_json::to_vec(message)
                .expect("messages have text keys and finite numbers")
                .into(),
            Self::Protobuf => message.encode_to_vec().into(),
        }
    }

    /// The error is what the bytes are instead of a message.
    pub(crate) fn decode_message<T: ShopMessage>(self, bytes: &[u8]) -> Result<T, String> {
        match self {
            Self::Json => {
                serde_json::from_slice(bytes).map_err(|error| format!("not JSON: {error}"))
            }
            Self::Protobuf => T::decode(bytes).map_err(|error| format!("not protobuf: {error}")),
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/protobuf",
        }
    }
}

/// Declares calls: what is asked, by whom it is answered and where, with what.
macro_rules! calls {
    ($($ask:ident => $service:ident $name:literal $path:literal => $answer:ident;)*) => {$(
        impl ServiceCall for $ask {
            type Answer = $answer;
            const TO: ShopService = ShopService::$service;
            const PATH: &'static str = $path;
            const RPC: &'static str = concat!("/", $name, $path);
        }
    )*};
}

calls! {
    GetAds => Ad "ad" "/ads" => AdList;
    GetCart => Cart "cart" "/carts/get" => CustomerCart;
    AddItem => Cart "cart" "/carts/add" => CustomerCart;
    EmptyCart => Cart "cart" "/carts/empty" => EmptyMessage;
    PlaceOrder => Checkout "checkout" "/orders" => OrderResult;
    GetSupportedCurrencies => Currency "currency" "/supported" => CurrencyList;
    ConvertCurrency => Currency "currency" "/convert" => Money;
    ConfirmOrder => Email "email" "/" => ConfirmationResult;
    ChargeCard => Payment "payment" "/charge" => ChargeResult;
    ListProducts => Productcatalog "productcatalog" "/products" => ProductList;
    GetProduct => Productcatalog "productcatalog" "/products/one" => Product;
    ListRecommendations => Recommendation "recommendation" "/recommendations" => RecommendationList;
    GetQuote => Shipping "shipping" "/quote" => Money;
    ShipOrder => Shipping "shipping" "/orders" => ShipmentResult;
}
