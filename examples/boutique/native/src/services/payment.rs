//! Charges credit cards: checks them, moves no money.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use uuid::Uuid;

use crate::goods::{Call, Card, Charge, Charged};
use crate::words::{Problem, Request, Response};

pub(super) fn answer(request: &Request) -> Result<Response, Problem> {
    match request.path() {
        Charge::PATH => {
            let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
            check(
                &request.read::<Charge>()?.card,
                (today.year().into(), today.month().into()),
            )?;
            Ok(request.reply(&Charged {
                transaction_id: Uuid::new_v4().to_string(),
            }))
        }
        _ => Err(request.unknown()),
    }
}

/// Whether a card can be charged in this month.
fn check(card: &Card, month: (i32, i32)) -> Result<(), Problem> {
    let digits: String = card
        .number
        .chars()
        .filter(|c| !matches!(c, '-' | ' '))
        .collect();
    if !luhn(&digits) {
        return Err(Problem::wrong("the card number is not valid"));
    }
    if !digits.starts_with(['4', '5']) {
        return Err(Problem::wrong("only Visa and Mastercard are accepted"));
    }
    if (card.year, card.month) < month {
        let last = &digits[digits.len().saturating_sub(4)..];
        return Err(Problem::wrong(format!(
            "the card ending {last} expired in {}/{}",
            card.month, card.year
        )));
    }
    Ok(())
}

/// Whether it is a number with the right check digit (ISO/IEC 7812-1).
fn luhn(number: &str) -> bool {
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
        let card = Card {
            number: number.into(),
            year,
            month,
            cvv: 123,
        };
        check(&card, (2026, 11)).map_err(|problem| problem.text)
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
