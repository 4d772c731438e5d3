//! Exchange rates against the euro, and exact conversion.

use std::fmt;

use serde::{Deserialize, Serialize};

const BILLION: i128 = 1_000_000_000;

/// An amount: whole units and billionths of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MoneyAmount {
    pub(crate) currency: String,
    pub(crate) units: i64,
    pub(crate) nanos: i64,
}

/// Errors of a conversion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConversionError {
    Unknown(String),
    TooLarge,
}

impl fmt::Display for ConversionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "no currency {code:?}"),
            Self::TooLarge => f.write_str("the amount is too large"),
        }
    }
}

/// Currency codes (ISO 4217) and what one euro buys, in ten-thousandths. Made up near real ones; a
/// shop would ask a bank.
pub(crate) const CURRENCY_RATES: &[(&str, i64)] = &[
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

fn find_rate(code: &str) -> Result<i128, ConversionError> {
    let found = CURRENCY_RATES.iter().find(|(known, _)| *known == code);
    found
        .map(|(_, rate)| i128::from(*rate))
        .ok_or_else(|| ConversionError::Unknown(code.chars().take(10).collect()))
}

/// Converts through the euro, rounded down to a billionth.
pub(crate) fn convert_amount(
    amount: &MoneyAmount,
    to: &str,
) -> Result<MoneyAmount, ConversionError> {
    let (from_rate, to_rate) = (find_rate(&amount.currency)?, find_rate(to)?);
    let nanos = i128::from(amount.units) * BILLION + i128::from(amount.nanos);
    let result = nanos * to_rate / from_rate;
    let units = i64::try_from(result / BILLION).map_err(|_| ConversionError::TooLarge)?;
    Ok(MoneyAmount {
        currency: to.to_owned(),
        units,
        nanos: (result % BILLION) as i64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn money(currency: &str, units: i64, nanos: i64) -> MoneyAmount {
        MoneyAmount {
            currency: currency.to_owned(),
            units,
            nanos,
        }
    }

    #[test]
    fn amounts_are_exact() {
        assert_eq!(
            convert_amount(&money("EUR", 10, 0), "USD"),
            Ok(money("USD", 11, 305_000_000))
        );
        assert_eq!(
            convert_amount(&money("USD", 11, 305_000_000), "EUR"),
            Ok(money("EUR", 10, 0))
        );
        assert_eq!(
            convert_amount(&money("CAD", 19, 990_000_000), "CAD"),
            Ok(money("CAD", 19, 990_000_000))
        );
    }

    #[test]
    fn refusals_say_why() {
        assert_eq!(
            convert_amount(&money("XXX", 1, 0), "EUR"),
            Err(ConversionError::Unknown("XXX".into()))
        );
        assert_eq!(
            convert_amount(&money("EUR", i64::MAX, 0), "IDR"),
            Err(ConversionError::TooLarge)
        );
    }

    #[test]
    fn every_code_is_listed_once() {
        let mut codes: Vec<_> = CURRENCY_RATES.iter().map(|(code, _)| code).collect();
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), CURRENCY_RATES.len());
        assert!(
            CURRENCY_RATES
                .iter()
                .all(|(code, rate)| code.len() == 3 && *rate > 0)
        );
    }
}
