//! The table that a visit to the shop ends with.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Kind;
use super::visit::Outcome;
use crate::tally::Tally;

/// One line a kind, one for all, and one a kind of failure.
pub(crate) fn table(outcome: &Outcome) -> String {
    let mut out = format!(
        "{:<12} {:>9} {:>9} {:>9} {:>9}\n",
        "kind", "requests", "p50 ms", "p99 ms", "failed"
    );
    for kind in Kind::ALL {
        line(
            &mut out,
            kind.name(),
            &outcome.get(&kind).cloned().unwrap_or_default(),
        );
    }
    let all = total(outcome);
    line(&mut out, "all", &all);
    for (failure, count) in all.failures() {
        let _ = writeln!(out, "{count} × {failure}");
    }
    out
}

/// All kinds together.
pub(crate) fn total(outcome: &Outcome) -> Tally {
    let mut all = Tally::default();
    outcome.values().for_each(|tally| all.merge(tally));
    all
}

fn line(out: &mut String, name: &str, tally: &Tally) {
    let requests = tally.answered() + tally.failed();
    let ms = |quantile| tally.us(quantile) / 1e3;
    let _ = writeln!(
        out,
        "{name:<12} {requests:>9} {:>9.1} {:>9.1} {:>9}",
        ms(0.5),
        ms(0.99),
        tally.failed()
    );
}

/// The same for programs: one object a kind.
pub(crate) fn json(outcome: &Outcome) -> Value {
    let one = |tally: &Tally| {
        json!({ "n": tally.answered(), "p50_us": tally.us(0.5), "p99_us": tally.us(0.99),
                "failed": tally.failed(), "failures": tally.failures() })
    };
    outcome
        .iter()
        .map(|(kind, tally)| (kind.name().to_owned(), one(tally)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Failure;
    use std::time::Duration;

    #[test]
    fn every_kind_has_its_line() {
        let mut outcome = Outcome::default();
        outcome
            .entry(Kind::Checkout)
            .or_default()
            .add(Ok(Duration::from_millis(12)));
        outcome
            .entry(Kind::Index)
            .or_default()
            .add(Err(Failure::Broken));
        let text = table(&outcome);
        assert!(
            Kind::ALL.iter().all(|kind| text.contains(kind.name())),
            "{text}"
        );
        assert!(text.contains("1 × connection broken"), "{text}");
        assert_eq!(json(&outcome)["checkout"]["n"], 1);
    }
}
