//! The table of a load on the shop.

use std::fmt::Write;

use serde_json::{Value, json};

use super::RequestKind;
use super::session::OutcomeByKind;
use crate::tally::RequestTally;

/// Renders a line for each kind, a line for all, and a line for each kind of failure.
pub(crate) fn render_table(outcome: &OutcomeByKind) -> String {
    let mut out = format!(
        "{:<12} {:>9} {:>9} {:>9} {:>9}\n",
        "kind", "requests", "p50 ms", "p99 ms", "failed"
    );
    // Also kinds without requests: tables of different runs have the same lines.
    for kind in RequestKind::ALL {
        write_line(
            &mut out,
            kind.name(),
            &outcome.get(&kind).cloned().unwrap_or_default(),
        );
    }
    let all = total_tally(outcome);
    write_line(&mut out, "all", &all);
    for (failure, count) in all.failures_by_kind() {
        let _ = writeln!(out, "{count} × {failure}");
    }
    out
}

/// Returns the tally of all kinds together.
pub(crate) fn total_tally(outcome: &OutcomeByKind) -> RequestTally {
    let mut all = RequestTally::default();
    outcome.values().for_each(|tally| all.merge(tally));
    all
}

fn write_line(out: &mut String, name: &str, tally: &RequestTally) {
    let requests = tally.answered_count() + tally.failed_count();
    let ms = |quantile| tally.latency_us(quantile) / 1e3;
    let _ = writeln!(
        out,
        "{name:<12} {requests:>9} {:>9.1} {:>9.1} {:>9}",
        ms(0.5),
        ms(0.99),
        tally.failed_count()
    );
}

/// Returns the report as JSON: one object per kind.
pub(crate) fn to_json(outcome: &OutcomeByKind) -> Value {
    let one = |tally: &RequestTally| {
        json!({ "n": tally.answered_count(), "p50_us": tally.latency_us(0.5), "p99_us": tally.latency_us(0.99),
                "failed": tally.failed_count(), "failures": tally.failures_by_kind() })
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
    use crate::tally::RequestFailure;
    use std::time::Duration;

    #[test]
    fn every_kind_has_a_line() {
        let mut outcome = OutcomeByKind::default();
        outcome
            .entry(RequestKind::Checkout)
            .or_default()
            .record_outcome(Ok(Duration::from_millis(12)));
        outcome
            .entry(RequestKind::Index)
            .or_default()
            .record_outcome(Err(RequestFailure::Broken));
        let text = render_table(&outcome);
        assert!(
            RequestKind::ALL
                .iter()
                .all(|kind| text.contains(kind.name())),
            "{text}"
        );
        assert!(text.contains("1 × connection broken"), "{text}");
        assert_eq!(to_json(&outcome)["checkout"]["n"], 1);
    }
}
