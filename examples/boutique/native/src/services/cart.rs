//! Carts, in the memory of the one instance that runs: stack.yml keeps it at one. A real shop would
//! use a database.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::api::{AddItem, CartItem, CustomerCart, EmptyCart, EmptyMessage, GetCart, ServiceCall};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};

thread_local! {
    static CARTS: RefCell<CartStore> = RefCell::default();
}

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    CARTS.with_borrow_mut(|carts| match request.path() {
        GetCart::PATH => Ok(request.reply(&carts.get_cart(request.decode_body::<GetCart>()?.user))),
        AddItem::PATH => Ok(request.reply(&carts.add_item(request.decode_body()?)?)),
        EmptyCart::PATH => {
            carts.0.remove(&request.decode_body::<EmptyCart>()?.user);
            Ok(request.reply(&EmptyMessage {}))
        }
        _ => Err(request.not_found()),
    })
}

/// By customer.
#[derive(Default)]
struct CartStore(HashMap<String, Vec<CartItem>>);

impl CartStore {
    fn get_cart(&self, user: String) -> CustomerCart {
        let items = self.0.get(&user).cloned().unwrap_or_default();
        CustomerCart { user, items }
    }

    fn add_item(&mut self, asked: AddItem) -> Result<CustomerCart, ServiceError> {
        let AddItem { user, item } = asked;
        if item.product_id.is_empty() || item.quantity == 0 {
            return Err(ServiceError::bad_request(
                "an item is a productId and a quantity of at least 1",
            ));
        }
        let items = self.0.entry(user.clone()).or_default();
        match items
            .iter_mut()
            .find(|known| known.product_id == item.product_id)
        {
            Some(known) => known.quantity = known.quantity.saturating_add(item.quantity),
            None => items.push(item),
        }
        Ok(self.get_cart(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(
        carts: &mut CartStore,
        user: &str,
        product: &str,
        quantity: u32,
    ) -> Result<CustomerCart, ServiceError> {
        carts.add_item(AddItem {
            user: user.into(),
            item: CartItem {
                product_id: product.into(),
                quantity,
            },
        })
    }

    #[test]
    fn quantities_add_up_and_carts_are_apart() {
        let mut carts = CartStore::default();
        add(&mut carts, "ann", "mug", 2).unwrap();
        let cart = add(&mut carts, "ann", "mug", 3).unwrap();
        assert_eq!(
            cart.items,
            [CartItem {
                product_id: "mug".into(),
                quantity: 5
            }]
        );
        assert!(carts.get_cart("bob".into()).items.is_empty());
        assert_eq!(add(&mut carts, "ann", "mug", 0).unwrap_err().status, 400);
    }
}
