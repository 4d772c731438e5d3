//! A comparison as a table for people.

use std::fmt::Write;

use super::report::{Better, Ratio, Report, Row};

/// The whole report; `spreads` has one entry a row.
pub(super) fn render(report: &Report, spreads: &[f64]) -> String {
    let mut out = String::new();
    let width = |of: fn(&Row) -> &String, least: usize| report.rows.iter().map(|r| of(r).len()).fold(least, usize::max);
    let (case, variant) = (width(|row| &row.case, 4), width(|row| &row.variant, 7));
    let head = ["n", "p50 µs", "p99 µs", "rps", "spread", "cpu µs", "failed"];
    let _ = write!(out, "{:case$}  {:variant$}", "case", "variant");
    for title in head {
        let _ = write!(out, " {title:>9}");
    }
    for (row, spread) in report.rows.iter().zip(spreads) {
        let _ = write!(out, "\n{:case$}  {:variant$} {:>9}", row.case, row.variant, row.n);
        let _ = write!(out, " {:>9.0} {:>9.0} {:>9.0}", row.p50_us, row.p99_us, row.rps);
        let _ = write!(out, " {:>8.0}% {:>9.1} {:>9}", spread * 100.0, row.cpu_us_per_request, row.failed);
    }
    out.push('\n');
    report.ratios.iter().for_each(|ratio| out.push_str(&line(ratio)));
    out
}

fn line(ratio: &Ratio) -> String {
    let sign = if ratio.better == Better::Lower { "≤" } else { "≥" };
    let verdict = if ratio.is_met() { "met" } else { "NOT MET" };
    format!("\n{}: {:.2} (goal {sign} {}: {verdict})", ratio.name, ratio.value, ratio.goal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_verdicts() {
        let mut report = Report::new("t");
        report.ratios.push(Ratio { name: "speed".into(), value: 0.5, better: Better::Higher, goal: 0.8 });
        let text = render(&report, &[]);
        assert!(text.contains("speed: 0.50 (goal ≥ 0.8: NOT MET)"), "{text}");
    }
}
