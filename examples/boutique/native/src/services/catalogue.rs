//! The product catalogue: the file that the Python shop reads, too.

use std::sync::LazyLock;

use crate::goods::{Call, GetProduct, ListProducts, Product, Products};
use crate::words::{Problem, Request, Response};

static CATALOGUE: LazyLock<Products> = LazyLock::new(|| {
    let text = include_str!("../../../services/catalogue.json");
    Products {
        products: serde_json::from_str(text).expect("a test reads it"),
    }
});

pub(super) fn answer(request: &Request) -> Result<Response, Problem> {
    match request.path() {
        ListProducts::PATH => Ok(request.reply(&*CATALOGUE)),
        GetProduct::PATH => Ok(request.reply(find(&request.read::<GetProduct>()?.id)?)),
        _ => Err(request.unknown()),
    }
}

/// What there is.
pub(super) fn all() -> &'static [Product] {
    &CATALOGUE.products
}

fn find(id: &str) -> Result<&'static Product, Problem> {
    all()
        .iter()
        .find(|product| product.id == id)
        .ok_or_else(|| Problem::new(404, format!("no product {id:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_products() {
        assert_eq!(all().len(), 9);
        assert_eq!(find("6E92ZMYYFZ").unwrap().name, "Mug");
        assert_eq!(find("NOPE").unwrap_err().status, 404);
    }
}
