//! Turns a cart into an order. What does not need each other is asked at once: the items' prices and the shipping's. Then
//! the money, then the parcel, then the empty cart and the confirmation.

use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::goods::{
    Call, Charge, Confirm, Convert, EmptyCart, GetCart, GetProduct, GetQuote, Item, Line, Money,
};
use crate::goods::{Order, PlaceOrder, ShipOrder};
use crate::line::Peers;
use crate::money::total;
use crate::words::{Problem, Request, Response};

pub(super) async fn answer(request: &Request, peers: &Peers<'_>) -> Result<Response, Problem> {
    match request.path() {
        PlaceOrder::PATH => Ok(request.reply(&place(request.read()?, peers).await?)),
        _ => Err(request.unknown()),
    }
}

async fn place(asked: PlaceOrder, peers: &Peers<'_>) -> Result<Order, Problem> {
    let PlaceOrder {
        user,
        currency,
        email,
        address,
        card,
    } = asked;
    let items = peers.call(&GetCart { user: user.clone() }).await?.items;
    if items.is_empty() {
        return Err(Problem::new(409, "the cart is empty"));
    }
    let lines = try_join_all(items.iter().map(|item| line(item, &currency, peers)));
    let (lines, shipping) = tokio::try_join!(lines, shipping(&items, &currency, peers))?;
    let amount = sum(&lines, &shipping, &currency)?;
    let transaction_id = peers
        .call(&Charge {
            amount: amount.clone(),
            card,
        })
        .await?
        .transaction_id;
    let tracking_id = peers.call(&ShipOrder { items, address }).await?.tracking_id;
    let order_id = Uuid::new_v4().to_string();
    let order = Order {
        order_id,
        items: lines,
        shipping,
        total: amount,
        transaction_id,
        tracking_id,
    };
    let (empty, confirm) = (EmptyCart { user }, Confirm { email, order });
    tokio::try_join!(peers.call(&empty), peers.call(&confirm))?;
    Ok(confirm.order)
}

/// What an item costs in the customer's currency.
async fn line(item: &Item, currency: &str, peers: &Peers<'_>) -> Result<Line, Problem> {
    let product = peers
        .call(&GetProduct {
            id: item.product_id.clone(),
        })
        .await?;
    let price = peers
        .call(&Convert {
            from: product.price,
            to: currency.to_owned(),
        })
        .await?;
    Ok(Line {
        product_id: product.id,
        quantity: item.quantity,
        price,
    })
}

async fn shipping(items: &[Item], currency: &str, peers: &Peers<'_>) -> Result<Money, Problem> {
    let quote = peers
        .call(&GetQuote {
            items: items.to_vec(),
        })
        .await?;
    peers
        .call(&Convert {
            from: quote,
            to: currency.to_owned(),
        })
        .await
}

fn sum(lines: &[Line], shipping: &Money, currency: &str) -> Result<Money, Problem> {
    let lines = lines.iter().map(|line| (&line.price, line.quantity));
    let sum = total(lines.chain([(shipping, 1)]), currency);
    sum.ok_or_else(|| Problem::new(500, "amounts of different currencies, or too large a sum"))
}
