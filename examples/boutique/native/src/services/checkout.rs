//! Turns a cart into an order. What does not need each other is asked at once: the items' prices
//! and the shipping's. Then the money, then the parcel, then the empty cart and the confirmation.

use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::api::{
    CartItem, ChargeCard, ConfirmOrder, ConvertCurrency, EmptyCart, GetCart, GetProduct, GetQuote,
    Money, OrderItem, ServiceCall,
};
use crate::api::{OrderResult, PlaceOrder, ShipOrder};
use crate::client::PeerServices;
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};
use crate::money::total_amount;

pub(super) async fn answer_request(
    request: &ServiceRequest,
    peers: &PeerServices<'_>,
) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        PlaceOrder::PATH => Ok(request.reply(&place_order(request.decode_body()?, peers).await?)),
        _ => Err(request.not_found()),
    }
}

async fn place_order(
    asked: PlaceOrder,
    peers: &PeerServices<'_>,
) -> Result<OrderResult, ServiceError> {
    let PlaceOrder {
        user,
        currency,
        email,
        address,
        card,
    } = asked;
    let items = peers
        .call_service(&GetCart { user: user.clone() })
        .await?
        .items;
    if items.is_empty() {
        return Err(ServiceError::new(409, "the cart is empty"));
    }
    let lines = try_join_all(items.iter().map(|item| order_item(item, &currency, peers)));
    let (lines, shipping) = tokio::try_join!(lines, shipping_cost(&items, &currency, peers))?;
    let amount = order_total(&lines, &shipping, &currency)?;
    let transaction_id = peers
        .call_service(&ChargeCard {
            amount: amount.clone(),
            card,
        })
        .await?
        .transaction_id;
    let tracking_id = peers
        .call_service(&ShipOrder { items, address })
        .await?
        .tracking_id;
    let order_id = Uuid::new_v4().to_string();
    let order = OrderResult {
        order_id,
        items: lines,
        shipping,
        total: amount,
        transaction_id,
        tracking_id,
    };
    let (empty, confirm) = (EmptyCart { user }, ConfirmOrder { email, order });
    tokio::try_join!(peers.call_service(&empty), peers.call_service(&confirm))?;
    Ok(confirm.order)
}

/// Makes the order item, with its cost in the customer's currency.
async fn order_item(
    item: &CartItem,
    currency: &str,
    peers: &PeerServices<'_>,
) -> Result<OrderItem, ServiceError> {
    let product = peers
        .call_service(&GetProduct {
            id: item.product_id.clone(),
        })
        .await?;
    let price = peers
        .call_service(&ConvertCurrency {
            from: product.price,
            to: currency.to_owned(),
        })
        .await?;
    Ok(OrderItem {
        product_id: product.id,
        quantity: item.quantity,
        price,
    })
}

async fn shipping_cost(
    items: &[CartItem],
    currency: &str,
    peers: &PeerServices<'_>,
) -> Result<Money, ServiceError> {
    let quote = peers
        .call_service(&GetQuote {
            items: items.to_vec(),
        })
        .await?;
    peers
        .call_service(&ConvertCurrency {
            from: quote,
            to: currency.to_owned(),
        })
        .await
}

fn order_total(
    lines: &[OrderItem],
    shipping: &Money,
    currency: &str,
) -> Result<Money, ServiceError> {
    let lines = lines.iter().map(|line| (&line.price, line.quantity));
    let sum = total_amount(lines.chain([(shipping, 1)]), currency);
    sum.ok_or_else(|| ServiceError::new(500, "amounts of different currencies, or too large a sum"))
}
