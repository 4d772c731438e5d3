//! Up to five products that the customer is not looking at already.

use super::catalogue;
use crate::goods::{Call, Recommend, Recommended};
use crate::words::{Problem, Request, Response};

pub(super) fn answer(request: &Request) -> Result<Response, Problem> {
    match request.path() {
        Recommend::PATH => Ok(request.reply(&recommend(&request.read()?))),
        _ => Err(request.unknown()),
    }
}

fn recommend(asked: &Recommend) -> Recommended {
    let others = catalogue::all()
        .iter()
        .filter(|product| !asked.not.contains(&product.id));
    let chosen = fastrand::choose_multiple(others, 5);
    Recommended {
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
        let ids: Vec<_> = catalogue::all()
            .iter()
            .map(|product| product.id.clone())
            .collect();
        let five = recommend(&Recommend {
            not: ids[..2].to_vec(),
        })
        .products;
        assert!(
            five.len() == 5 && !five.contains(&ids[0]) && !five.contains(&ids[1]),
            "{five:?}"
        );
        assert_eq!(
            recommend(&Recommend {
                not: ids[1..].to_vec()
            })
            .products,
            ids[..1]
        );
    }
}
