//! The product catalogue: the file that the Python shop reads, too.

use std::sync::LazyLock;

use crate::api::{GetProduct, ListProducts, Product, ProductList, ServiceCall};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};

static CATALOGUE: LazyLock<ProductList> = LazyLock::new(|| {
    let text = include_str!("../../../services/catalogue.json");
    ProductList {
        products: serde_json::from_str(text).expect("a test reads it"),
    }
});

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        ListProducts::PATH => Ok(request.reply(&*CATALOGUE)),
        GetProduct::PATH => {
            Ok(request.reply(find_product(&request.decode_body::<GetProduct>()?.id)?))
        }
        _ => Err(request.not_found()),
    }
}

/// Returns all products.
pub(super) fn all_products() -> &'static [Product] {
    &CATALOGUE.products
}

fn find_product(id: &str) -> Result<&'static Product, ServiceError> {
    all_products()
        .iter()
        .find(|product| product.id == id)
        .ok_or_else(|| ServiceError::new(404, format!("no product {id:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_products() {
        assert_eq!(all_products().len(), 9);
        assert_eq!(find_product("6E92ZMYYFZ").unwrap().name, "Mug");
        assert_eq!(find_product("NOPE").unwrap_err().status, 404);
    }
}
