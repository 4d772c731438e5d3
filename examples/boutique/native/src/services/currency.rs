//! Exchange rates against the euro, and exact conversion.

use crate::api::{ConvertCurrency, CurrencyList, GetSupportedCurrencies, Money, ServiceCall};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};
use crate::money::{to_money, to_nanos};

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        GetSupportedCurrencies::PATH => Ok(request.reply(&list_currencies())),
        ConvertCurrency::PATH => Ok(request.reply(&convert_amount(&request.decode_body()?)?)),
        _ => Err(request.not_found()),
    }
}

/// Currency codes (ISO 4217) and what one euro buys, in ten-thousandths. Made up near real ones; a
/// shop would ask a bank.
const CURRENCY_RATES: &[(&str, i64)] = &[
    ("EUR", 10_000),
    ("USD", 11_305),
    ("JPY", 1_264_000),
    ("BGN", 19_558),
    ("CZK", 255_920),
    ("DKK", 74_609),
    ("GBP", 8_597),
    ("HUF", 3_158_900),
    ("PLN", 42_996),
    ("RON", 47_463),
    ("SEK", 105_375),
    ("CHF", 11_360),
    ("ISK", 1_368_000),
    ("NOK", 98_040),
    ("HRK", 74_210),
    ("RUB", 744_208),
    ("TRY", 61_247),
    ("AUD", 16_072),
    ("BRL", 42_682),
    ("CAD", 15_128),
    ("CNY", 75_857),
    ("HKD", 88_743),
    ("IDR", 159_994_000),
    ("ILS", 40_875),
    ("INR", 795_320),
    ("KRW", 12_753_500),
    ("MXN", 217_999),
    ("MYR", 46_289),
    ("NZD", 16_679),
    ("PHP", 591_083),
    ("SGD", 15_349),
    ("THB", 360_120),
    ("ZAR", 160_583),
];

fn list_currencies() -> CurrencyList {
    CurrencyList {
        codes: CURRENCY_RATES
            .iter()
            .map(|(code, _)| (*code).to_owned())
            .collect(),
    }
}

fn find_rate(code: &str) -> Result<i128, ServiceError> {
    let found = CURRENCY_RATES
        .iter()
        .find(|(known, _)| *known == code)
        .map(|(_, rate)| i128::from(*rate));
    found.ok_or_else(|| {
        ServiceError::bad_request(format!(
            "no currency {:?}",
            code.chars().take(10).collect::<String>()
        ))
    })
}

/// Converts through the euro, rounded down to a billionth.
fn convert_amount(asked: &ConvertCurrency) -> Result<Money, ServiceError> {
    let (from_rate, to_rate) = (find_rate(&asked.from.currency)?, find_rate(&asked.to)?);
    to_money(&asked.to, to_nanos(&asked.from) * to_rate / from_rate)
        .ok_or_else(|| ServiceError::bad_request("the amount is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(currency: &str, units: i64, nanos: i64, to: &str) -> Result<(i64, i64), String> {
        let from = Money {
            currency: currency.to_owned(),
            units,
            nanos,
        };
        let converted = super::convert_amount(&ConvertCurrency {
            from,
            to: to.to_owned(),
        });
        converted
            .map(|money| (money.units, money.nanos))
            .map_err(|problem| problem.text)
    }

    #[test]
    fn amounts_are_exact() {
        assert_eq!(convert("EUR", 10, 0, "USD"), Ok((11, 305_000_000)));
        assert_eq!(convert("USD", 11, 305_000_000, "EUR"), Ok((10, 0)));
        assert_eq!(
            convert("CAD", 19, 990_000_000, "CAD"),
            Ok((19, 990_000_000))
        );
    }

    #[test]
    fn refusals_say_why() {
        assert_eq!(
            convert("XXX", 1, 0, "EUR"),
            Err("no currency \"XXX\"".into())
        );
        assert_eq!(
            convert("EUR", i64::MAX, 0, "IDR"),
            Err("the amount is too large".into())
        );
    }
}
