//! Up to five products that the customer is not looking at already.

use super::catalogue;
use crate::api::{ListRecommendations, RecommendationList, ServiceCall};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        ListRecommendations::PATH => {
            Ok(request.reply(&list_recommendations(&request.decode_body()?)))
        }
        _ => Err(request.not_found()),
    }
}

fn list_recommendations(asked: &ListRecommendations) -> RecommendationList {
    let others = catalogue::all_products()
        .iter()
        .filter(|product| !asked.not.contains(&product.id));
    let chosen = fastrand::choose_multiple(others, 5);
    RecommendationList {
        products: chosen
            .into_iter()
            .map(|product| product.id.clone())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_others_or_what_is_left() {
        let ids: Vec<_> = catalogue::all_products()
            .iter()
            .map(|product| product.id.clone())
            .collect();
        let five = list_recommendations(&ListRecommendations {
            not: ids[..2].to_vec(),
        })
        .products;
        assert!(
            five.len() == 5 && !five.contains(&ids[0]) && !five.contains(&ids[1]),
            "{five:?}"
        );
        assert_eq!(
            list_recommendations(&ListRecommendations {
                not: ids[1..].to_vec()
            })
            .products,
            ids[..1]
        );
    }
}
