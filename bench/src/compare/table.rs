//! Renders a comparison as a text table.

use std::fmt::Write;

use super::RowNote;
use super::report::{ComparisonReport, GoalRatio, ReportRow};

/// Renders the whole report; `notes` has one entry per row. The load generator's cost has a column
/// if it is known.
pub(super) fn render_table(report: &ComparisonReport, notes: &[RowNote]) -> String {
    let mut out = String::new();
    let width = |of: fn(&ReportRow) -> &String, least: usize| {
        report
            .rows
            .iter()
            .map(|r| of(r).len())
            .fold(least, usize::max)
    };
    let (case, variant) = (width(|row| &row.case, 4), width(|row| &row.variant, 7));
    let head = ["n", "p50 µs", "p99 µs", "rps", "spread", "cpu µs", "failed"];
    let _ = write!(out, "{:case$}  {:variant$}", "case", "variant");
    let client = notes
        .iter()
        .any(|note| note.client_us.is_some())
        .then_some("client µs");
    for title in head.into_iter().chain(client) {
        let _ = write!(out, " {title:>9}");
    }
    for (row, note) in report.rows.iter().zip(notes) {
        let _ = write!(
            out,
            "\n{:case$}  {:variant$} {:>9}",
            row.case, row.variant, row.n
        );
        let _ = write!(
            out,
            " {:>9.0} {:>9.0} {:>9.0}",
            row.p50_us, row.p99_us, row.rps
        );
        let _ = write!(
            out,
            " {:>8.0}% {:>9.1} {:>9}",
            note.spread * 100.0,
            row.cpu_us_per_request,
            row.failed
        );
        if let Some(us) = note.client_us {
            let _ = write!(out, " {us:>9.1}");
        }
    }
    out.push('\n');
    report
        .ratios
        .iter()
        .for_each(|ratio| out.push_str(&goal_line(ratio)));
    out
}

fn goal_line(ratio: &GoalRatio) -> String {
    let sign = ratio.better.goal_sign();
    let verdict = if ratio.is_met() { "met" } else { "NOT MET" };
    format!(
        "\n{}: {:.2} (goal {sign} {}: {verdict})",
        ratio.name, ratio.value, ratio.goal
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::BetterDirection;

    #[test]
    fn rows_and_verdicts() {
        let mut report = ComparisonReport::new("t");
        report.ratios.push(GoalRatio {
            name: "speed".into(),
            value: 0.5,
            better: BetterDirection::Higher,
            goal: 0.8,
        });
        let text = render_table(&report, &[]);
        assert!(!text.contains("client"), "{text}");
        assert!(text.contains("speed: 0.50 (goal ≥ 0.8: NOT MET)"), "{text}");
    }
}
