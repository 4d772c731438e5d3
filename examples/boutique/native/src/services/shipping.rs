//! What shipping costs, and the shipping itself: a tracking number.

use uuid::Uuid;

use crate::goods::{Call, GetQuote, Item, Money, ShipOrder, Shipped};
use crate::money::money;
use crate::words::{Problem, Request, Response};

/// Billionths of a dollar for a parcel.
const BASE: i128 = 4_990_000_000;
/// And for each thing in it.
const EACH: i128 = 1_500_000_000;

pub(super) fn answer(request: &Request) -> Result<Response, Problem> {
    match request.path() {
        GetQuote::PATH => Ok(request.reply(&quote(&request.read::<GetQuote>()?.items)?)),
        ShipOrder::PATH => Ok(request.reply(&ship(&request.read::<ShipOrder>()?.items)?)),
        _ => Err(request.unknown()),
    }
}

fn pieces(items: &[Item]) -> i128 {
    items.iter().map(|item| i128::from(item.quantity)).sum()
}

fn quote(items: &[Item]) -> Result<Money, Problem> {
    let cost = match pieces(items) {
        0 => 0,
        count => BASE + EACH * count,
    };
    money("USD", cost).ok_or_else(|| Problem::wrong("that is too much to ship"))
}

fn ship(items: &[Item]) -> Result<Shipped, Problem> {
    if pieces(items) == 0 {
        return Err(Problem::wrong("there is nothing to ship"));
    }
    let number = Uuid::new_v4().simple().to_string()[..18].to_uppercase();
    Ok(Shipped {
        tracking_id: number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_and_each_thing_in_it() {
        let items = |quantity| {
            [Item {
                product_id: "mug".into(),
                quantity,
            }]
        };
        let cost = |quantity| {
            quote(&items(quantity))
                .map(|money| (money.units, money.nanos))
                .unwrap()
        };
        assert_eq!((cost(0), cost(2)), ((0, 0), (7, 990_000_000)));
        assert_eq!(ship(&items(0)).unwrap_err().status, 400);
        assert_eq!(ship(&items(1)).unwrap().tracking_id.len(), 18);
    }
}
