//! Advertisements: those that fit what the customer looks at, else two at random.

use crate::api::{AdList, GetAds, ServiceCall};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};

const ADS: [(&str, &str); 6] = [
    ("accessories", "Watch the time: 20 % off every watch."),
    ("clothing", "Tank tops, two for the price of one."),
    ("footwear", "Loafers that last. Free second sole."),
    ("hair", "Hairdryer for travellers: 50 % off."),
    ("decor", "Candle holders for long evenings, 30 % off."),
    ("kitchen", "Mugs: buy two, the second one is free."),
];

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        GetAds::PATH => Ok(request.reply(&select_ads(&request.decode_body()?))),
        _ => Err(request.not_found()),
    }
}

fn select_ads(asked: &GetAds) -> AdList {
    let wanted = |category: &str| asked.categories.iter().any(|one| one == category);
    let mut fitting: Vec<_> = ADS
        .iter()
        .filter(|(category, _)| wanted(category))
        .collect();
    if fitting.is_empty() {
        fitting = fastrand::choose_multiple(&ADS, 2);
    }
    AdList {
        ads: fitting
            .into_iter()
            .map(|(_, text)| (*text).to_owned())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_else_two() {
        let of = |category: &str| {
            select_ads(&GetAds {
                categories: vec![category.to_owned()],
            })
            .ads
        };
        assert_eq!(of("footwear"), ["Loafers that last. Free second sole."]);
        assert_eq!(of("boats").len(), 2);
    }
}
