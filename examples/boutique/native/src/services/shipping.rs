//! Cost of shipping, and shipment: a tracking number.

use uuid::Uuid;

use crate::api::{CartItem, GetQuote, Money, ServiceCall, ShipOrder, ShipmentResult};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};
use crate::money::to_money;

/// Billionths of a dollar for a parcel.
const BASE_NANOS: i128 = 4_990_000_000;
/// And for each thing in it.
const ITEM_NANOS: i128 = 1_500_000_000;

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        GetQuote::PATH => {
            Ok(request.reply(&quote_shipping(&request.decode_body::<GetQuote>()?.items)?))
        }
        ShipOrder::PATH => {
            Ok(request.reply(&ship_order(&request.decode_body::<ShipOrder>()?.items)?))
        }
        _ => Err(request.not_found()),
    }
}

fn count_items(items: &[CartItem]) -> i128 {
    items.iter().map(|item| i128::from(item.quantity)).sum()
}

fn quote_shipping(items: &[CartItem]) -> Result<Money, ServiceError> {
    let cost = match count_items(items) {
        0 => 0,
        count => BASE_NANOS + ITEM_NANOS * count,
    };
    to_money("USD", cost).ok_or_else(|| ServiceError::bad_request("that is too much to ship"))
}

fn ship_order(items: &[CartItem]) -> Result<ShipmentResult, ServiceError> {
    if count_items(items) == 0 {
        return Err(ServiceError::bad_request("there is nothing to ship"));
    }
    let number = Uuid::new_v4().simple().to_string()[..18].to_uppercase();
    Ok(ShipmentResult {
        tracking_id: number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_and_each_thing_in_it() {
        let items = |quantity| {
            [CartItem {
                product_id: "mug".into(),
                quantity,
            }]
        };
        let cost = |quantity| {
            quote_shipping(&items(quantity))
                .map(|money| (money.units, money.nanos))
                .unwrap()
        };
        assert_eq!((cost(0), cost(2)), ((0, 0), (7, 990_000_000)));
        assert_eq!(ship_order(&items(0)).unwrap_err().status, 400);
        assert_eq!(ship_order(&items(1)).unwrap().tracking_id.len(), 18);
    }
}
