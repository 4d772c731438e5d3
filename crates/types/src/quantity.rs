//! Amounts of memory and CPU as Kubernetes and OpenFaaS write them (`128Mi`, `1G`, `500m`, `0.5`).

/// Error of a text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} {text:?}: write {hint}")]
pub struct InvalidQuantity {
    what: &'static str,
    text: String,
    hint: &'static str,
}

// Kubernetes' suffixes; those with an `i` are powers of two.
const MEMORY_UNITS: &[(&str, u64)] = &[
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("K", 1_000),
    ("k", 1_000),
    ("M", 1_000_000),
    ("m", 1_000_000), // OpenFaaS' own examples write `40m` for memory and mean megabytes
    ("G", 1_000_000_000),
    ("g", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("", 1),
];

/// Parses a memory quantity into bytes, at least 1.
pub fn parse_memory(text: &str) -> Result<u64, InvalidQuantity> {
    let fail = || InvalidQuantity {
        what: "memory",
        // Shortened, because the text of a tenant goes into messages.
        text: text.chars().take(40).collect(),
        hint: "bytes, or a number with Ki, Mi, Gi, k, M or G (`128Mi`)",
    };
    let (number, unit) = split_unit(text.trim());
    let unit = MEMORY_UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(fail)?
        .1;
    // A limit of 0 bytes would let no instance start.
    scale_to_unit(number, u128::from(unit))
        .filter(|n| *n > 0)
        .ok_or_else(fail)
}

/// Parses a CPU quantity into thousandths of a core, at least 1.
pub fn parse_cpu(text: &str) -> Result<u64, InvalidQuantity> {
    let fail = || InvalidQuantity {
        what: "cpu",
        text: text.chars().take(40).collect(),
        hint: "cores (`0.5`, `2`) or thousandths (`500m`)",
    };
    let (number, unit) = split_unit(text.trim());
    // Kubernetes counts cores in thousandths, too.
    let unit = match unit {
        "" => 1_000,
        "m" => 1,
        _ => return Err(fail()),
    };
    scale_to_unit(number, unit)
        .filter(|n| *n > 0)
        .ok_or_else(fail)
}

fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len()),
    )
}

fn scale_to_unit(number: &str, unit: u128) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Nine digits are finer than any unit, and keep the product within `u128`.
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return None;
    }
    let part = fraction.parse::<u128>().ok()? * unit / 10u128.pow(fraction.len() as u32);
    // In `u128`, so that an overflow is found instead of wrapped.
    u64::try_from(
        whole
            .parse::<u64>()
            .ok()
            .map(u128::from)?
            .checked_mul(unit)?
            .checked_add(part)?,
    )
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_quantities() {
        assert_eq!(parse_memory("128Mi").unwrap(), 128 << 20);
        assert_eq!(parse_memory("40m").unwrap(), 40_000_000);
        assert_eq!(parse_memory("1.5G").unwrap(), 1_500_000_000);
        assert_eq!(parse_cpu("100m").unwrap(), 100);
        assert_eq!(parse_cpu("0.5").unwrap(), 500);
        for bad in ["", "0", "-1", "Mi", "1..2", "12XB", "1.Mi"] {
            assert!(parse_memory(bad).is_err(), "{bad}");
        }
        assert!(parse_cpu("1Mi").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            let _ = (parse_memory(&text), parse_cpu(&text));
        }
    }
}
