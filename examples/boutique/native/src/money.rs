//! Adding up amounts of one currency.

use crate::api::Money;

pub(crate) const BILLION: i128 = 1_000_000_000;

/// An amount given in billionths; none when it is too large.
pub(crate) fn to_money(currency: &str, nanos: i128) -> Option<Money> {
    let units = i64::try_from(nanos / BILLION).ok()?;
    Some(Money {
        currency: currency.to_owned(),
        units,
        nanos: (nanos % BILLION) as i64,
    })
}

/// An amount in billionths of its unit.
pub(crate) fn to_nanos(amount: &Money) -> i128 {
    i128::from(amount.units) * BILLION + i128::from(amount.nanos)
}

/// The sum of amounts and quantities; none when they are of different currencies, or too large.
pub(crate) fn total_amount<'a>(
    amounts: impl Iterator<Item = (&'a Money, u32)>,
    currency: &str,
) -> Option<Money> {
    let mut sum = 0_i128;
    for (amount, quantity) in amounts {
        if amount.currency != currency {
            return None;
        }
        sum = sum.checked_add(to_nanos(amount).checked_mul(i128::from(quantity))?)?;
    }
    to_money(currency, sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact() {
        let price = Money {
            currency: "USD".into(),
            units: 19,
            nanos: 990_000_000,
        };
        let shipping = Money {
            currency: "USD".into(),
            units: 7,
            nanos: 990_000_000,
        };
        let sum = total_amount([(&price, 2), (&shipping, 1)].into_iter(), "USD").unwrap();
        assert_eq!((sum.units, sum.nanos), (47, 970_000_000));
        assert_eq!(total_amount([(&price, 1)].into_iter(), "EUR"), None);
        let most = Money {
            currency: "USD".into(),
            units: i64::MAX,
            nanos: 0,
        };
        assert_eq!(total_amount([(&most, 2)].into_iter(), "USD"), None);
    }
}
