//! Carts, in the memory of the one instance that runs: stack.yml keeps it at one. A real shop would use a database.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::goods::{AddItem, Call, Cart, EmptyCart, GetCart, Item, Nothing};
use crate::words::{Problem, Request, Response};

thread_local! {
    static CARTS: RefCell<Carts> = RefCell::default();
}

pub(super) fn answer(request: &Request) -> Result<Response, Problem> {
    CARTS.with_borrow_mut(|carts| match request.path() {
        GetCart::PATH => Ok(request.reply(&carts.get(request.read::<GetCart>()?.user))),
        AddItem::PATH => Ok(request.reply(&carts.add(request.read()?)?)),
        EmptyCart::PATH => {
            carts.0.remove(&request.read::<EmptyCart>()?.user);
            Ok(request.reply(&Nothing {}))
        }
        _ => Err(request.unknown()),
    })
}

/// By customer.
#[derive(Default)]
struct Carts(HashMap<String, Vec<Item>>);

impl Carts {
    fn get(&self, user: String) -> Cart {
        let items = self.0.get(&user).cloned().unwrap_or_default();
        Cart { user, items }
    }

    fn add(&mut self, asked: AddItem) -> Result<Cart, Problem> {
        let AddItem { user, item } = asked;
        if item.product_id.is_empty() || item.quantity == 0 {
            return Err(Problem::wrong(
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
        Ok(self.get(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(carts: &mut Carts, user: &str, product: &str, quantity: u32) -> Result<Cart, Problem> {
        carts.add(AddItem {
            user: user.into(),
            item: Item {
                product_id: product.into(),
                quantity,
            },
        })
    }

    #[test]
    fn quantities_add_up_and_carts_are_apart() {
        let mut carts = Carts::default();
        add(&mut carts, "ann", "mug", 2).unwrap();
        let cart = add(&mut carts, "ann", "mug", 3).unwrap();
        assert_eq!(
            cart.items,
            [Item {
                product_id: "mug".into(),
                quantity: 5
            }]
        );
        assert!(carts.get("bob".into()).items.is_empty());
        assert_eq!(add(&mut carts, "ann", "mug", 0).unwrap_err().status, 400);
    }
}
