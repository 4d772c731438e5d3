//! What the services say to each other: each message once, with its JSON names and its protobuf numbers.

use bytes::Bytes;
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::messages::*;
use crate::services::Service;

mod messages;

/// How a message is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encoding {
    Json,
    Protobuf,
}

/// A message of the shop.
pub(crate) trait Goods: prost::Message + Serialize + DeserializeOwned + Default {}

impl<T: prost::Message + Serialize + DeserializeOwned + Default> Goods for T {}

/// What one service asks another.
pub(crate) trait Call: Goods {
    /// What is answered.
    type Answer: Goods;
    /// Who is asked.
    const TO: Service;
    /// Below the service, for HTTP and memory.
    const PATH: &'static str;
    /// With the service, for gRPC.
    const RPC: &'static str;
}

impl Encoding {
    pub(crate) fn write<T: Goods>(self, message: &T) -> Bytes {
        match self {
            Self::Json => serde_json::to_vec(message)
                .expect("messages have text keys and finite numbers")
                .into(),
            Self::Protobuf => message.encode_to_vec().into(),
        }
    }

    /// The error is what the bytes are instead of a message.
    pub(crate) fn read<T: Goods>(self, bytes: &[u8]) -> Result<T, String> {
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
        impl Call for $ask {
            type Answer = $answer;
            const TO: Service = Service::$service;
            const PATH: &'static str = $path;
            const RPC: &'static str = concat!("/", $name, $path);
        }
    )*};
}

calls! {
    GetAds => Ad "ad" "/ads" => Ads;
    GetCart => Cart "cart" "/carts/get" => Cart;
    AddItem => Cart "cart" "/carts/add" => Cart;
    EmptyCart => Cart "cart" "/carts/empty" => Nothing;
    PlaceOrder => Checkout "checkout" "/orders" => Order;
    Supported => Currency "currency" "/supported" => Currencies;
    Convert => Currency "currency" "/convert" => Money;
    Confirm => Email "email" "/" => Sent;
    Charge => Payment "payment" "/charge" => Charged;
    ListProducts => Productcatalog "productcatalog" "/products" => Products;
    GetProduct => Productcatalog "productcatalog" "/products/one" => Product;
    Recommend => Recommendation "recommendation" "/recommendations" => Recommended;
    GetQuote => Shipping "shipping" "/quote" => Money;
    ShipOrder => Shipping "shipping" "/orders" => Shipped;
}
