//! Charges credit cards: checks them, moves no money.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use uuid::Uuid;

use crate::api::{ChargeCard, ChargeResult, CreditCard, ServiceCall};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        ChargeCard::PATH => {
            let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
            check_card(
                &request.decode_body::<ChargeCard>()?.card,
                (today.year().into(), today.month().into()),
            )?;
            Ok(request.reply(&ChargeResult {
                transaction_id: Uuid::new_v4().to_string(),
            }))
        }
        _ => Err(request.not_found()),
    }
}

/// Checks that a card can be charged in this month.
fn check_card(card: &CreditCard, month: (i32, i32)) -> Result<(), ServiceError> {
    let digits: String = card
        .number
        .chars()
        .filter(|c| !matches!(c, '-' | ' '))
        .collect();
    if !is_luhn_valid(&digits) {
        return Err(ServiceError::bad_request("the card number is not valid"));
    }
    if !digits.starts_with(['4', '5']) {
        return Err(ServiceError::bad_request(
            "only Visa and Mastercard are accepted",
        ));
    }
    if (card.year, card.month) < month {
        let last = &digits[digits.len().saturating_sub(4)..];
        return Err(ServiceError::bad_request(format!(
            "the card ending {last} expired in {}/{}",
            card.month, card.year
        )));
    }
    Ok(())
}

/// Returns true if the check digit is right (Luhn, ISO/IEC 7812-1).
fn is_luhn_valid(number: &str) -> bool {
    if number.is_empty() || !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return false;
    }
    let digits = number.bytes().rev().map(|digit| u32::from(digit - b'0'));
    let weigh = |(place, digit): (usize, u32)| {
        if place % 2 == 1 {
            digit * 2 / 10 + digit * 2 % 10
        } else {
            digit
        }
    };
    digits
        .enumerate()
        .map(weigh)
        .sum::<u32>()
        .is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(number: &str, year: i32, month: i32) -> Result<(), String> {
        let card = CreditCard {
            number: number.into(),
            year,
            month,
            cvv: 123,
        };
        check_card(&card, (2026, 11)).map_err(|problem| problem.text)
    }

    #[test]
    fn good_and_bad_cards() {
        assert_eq!(checked("4111-1111-1111-1111", 2026, 11), Ok(()));
        for (number, year, text) in [
            ("4111-1111-1111-1112", 2027, "not valid"),
            ("four", 2027, "not valid"),
            ("", 2027, "not valid"),
            ("3782 822463 10005", 2027, "Visa and Mastercard"),
            (
                "4111-1111-1111-1111",
                2026,
                "ending 1111 expired in 10/2026",
            ),
        ] {
            let refused = checked(number, year, 10).unwrap_err();
            assert!(refused.contains(text), "{number}: {refused}");
        }
    }
}
