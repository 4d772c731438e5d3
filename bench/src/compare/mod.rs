//! Comparison of variants.
//!
//! A machine's speed drifts, and other processes disturb it. So the variants of a case run in
//! sequence within each round, in alternating order. The report has the median over the rounds. The
//! spread (largest minus smallest, divided by the median) is printed beside it. A difference below
//! the spread is not significant.

mod report;
pub(crate) mod results_page;
mod table;

use std::io;
use std::time::Duration;

use crate::load::MeasureWindow;
use crate::load::epoll_client::LoadResult;
use crate::tally::RequestTally;

pub(crate) use report::{BetterDirection, ComparisonReport, GoalRatio, ReportRow};

/// Minimum number of rounds of a comparison.
pub(crate) const ROUNDS: usize = 5;

/// Figures of a variant in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RoundSample {
    /// Requests answered.
    pub(crate) n: u64,
    /// Requests that failed.
    pub(crate) failed: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Responses per second.
    pub(crate) rps: f64,
    /// CPU time of the processes under test, per response.
    pub(crate) cpu_us_per_request: f64,
}

impl RoundSample {
    /// Creates a sample from a tally, the length of its window and the CPU time in it.
    pub(crate) fn from_tally(tally: &RequestTally, length: Duration, cpu: Duration) -> Self {
        Self {
            n: tally.answered_count(),
            failed: tally.failed_count(),
            p50_us: tally.latency_us(0.5),
            p99_us: tally.latency_us(0.99),
            rps: tally.answered_count() as f64 / length.as_secs_f64(),
            cpu_us_per_request: cpu.as_nanos() as f64 / 1e3 / tally.answered_count().max(1) as f64,
        }
    }
}

/// A sample with the cost of the load generator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadSample {
    sample: RoundSample,
    /// CPU time of the load generator, in microseconds per response; `None`: unknown.
    client_us: Option<f64>,
}

impl LoadSample {
    /// Creates a sample from a load, its window and the CPU time in it.
    pub(crate) fn from_load(loaded: &LoadResult, window: MeasureWindow, cpu: Duration) -> Self {
        Self {
            sample: RoundSample::from_tally(&loaded.tally, window.length(), cpu),
            client_us: Some(loaded.own_us()),
        }
    }
}

impl LoadSample {
    /// Creates a sample with a known part of the load generator. `sample` includes it if the
    /// generator is one of the two sides.
    pub(crate) fn with_client(sample: RoundSample, client_us: f64) -> Self {
        Self {
            sample,
            client_us: Some(client_us),
        }
    }
}

impl From<RoundSample> for LoadSample {
    fn from(sample: RoundSample) -> Self {
        Self {
            sample,
            client_us: None,
        }
    }
}

/// Figures of a row that appear only in the printed table.
#[derive(Debug, Clone, Copy)]
struct RowNote {
    /// Spread of the rates, divided by the median.
    spread: f64,
    /// See [`LoadSample`].
    client_us: Option<f64>,
}

/// A comparison in progress.
pub(crate) struct BenchComparison {
    report: ComparisonReport,
    /// Notes, one per row.
    notes: Vec<RowNote>,
    /// Lines below the printed table.
    remarks: Vec<String>,
    rounds: usize,
}

impl BenchComparison {
    /// Creates a comparison; `name` is the file name in `bench/results`.
    pub(crate) fn new(name: &str, rounds: usize) -> Self {
        Self {
            report: ComparisonReport::new(name),
            notes: Vec::new(),
            remarks: Vec::new(),
            // A median of no rounds is 0, which would look like a very fast variant.
            rounds: rounds.max(1),
        }
    }

    /// Measures every variant in every round of one case. `measure` gets the variant's index.
    pub(crate) async fn measure_case<E>(
        &mut self,
        case: &str,
        variants: &[&str],
        mut measure: impl AsyncFnMut(usize) -> Result<RoundSample, E>,
    ) -> Result<(), E> {
        self.measure_loads(case, variants, async |index| {
            measure(index).await.map(LoadSample::from)
        })
        .await
    }

    /// Measures a case like [`Self::measure_case`], with the cost of the load generator.
    pub(crate) async fn measure_loads<E>(
        &mut self,
        case: &str,
        variants: &[&str],
        mut measure: impl AsyncFnMut(usize) -> Result<LoadSample, E>,
    ) -> Result<(), E> {
        let mut samples: Vec<Vec<LoadSample>> = vec![Vec::new(); variants.len()];
        // On standard error: with --json, standard output has the report alone.
        eprintln!("{case}: {} rounds of {}", self.rounds, variants.join(", "));
        // Rounds outside, variants inside: drift of the machine hits all variants of a round alike.
        for round in 0..self.rounds {
            for index in round_order(variants.len(), round) {
                samples[index].push(measure(index).await?);
            }
        }
        for (variant, measured) in variants.iter().zip(&samples) {
            // Medians of each figure by itself: a row need not be any round's row.
            let samples: Vec<_> = measured.iter().map(|one| one.sample).collect();
            self.report.rows.push(median_row(case, variant, &samples));
            self.notes.push(row_note(measured));
        }
        Ok(())
    }

    /// Adds a row of a single measurement instead of a median of rounds.
    pub(crate) fn add_single(&mut self, case: &str, variant: &str, measured: LoadSample) {
        self.report
            .rows
            .push(median_row(case, variant, &[measured.sample]));
        self.notes.push(row_note(&[measured]));
    }

    /// Adds a ratio between two rows of a case: `value` of `over` divided by that of `under`.
    pub(crate) fn add_ratio(
        &mut self,
        name: &str,
        case: &str,
        over: &str,
        under: &str,
        goal: RatioGoal,
    ) {
        let of = |variant| self.report.find_row(case, variant).map(goal.value);
        // A variant may have been left out by options; then there is no ratio, and no failed goal.
        if let (Some(over), Some(under)) = (of(over), of(under)) {
            self.report.ratios.push(GoalRatio {
                name: name.to_owned(),
                value: over / under,
                better: goal.better,
                goal: goal.goal,
            });
        }
    }

    /// Adds a case with the best row of each variant: the highest rate among rows that `stable`
    /// accepts.
    pub(crate) fn add_best(
        &mut self,
        case: &str,
        variants: &[&str],
        stable: impl Fn(&ReportRow) -> bool,
    ) {
        for variant in variants {
            let rows = self
                .report
                .rows
                .iter()
                .zip(&self.notes)
                .filter(|(row, _)| row.variant == *variant);
            let best = rows
                .filter(|(row, _)| stable(row))
                // total_cmp: rates of empty rounds can be NaN, which has no partial order.
                .max_by(|(a, _), (b, _)| a.rps.total_cmp(&b.rps));
            if let Some((row, &note)) = best {
                let row = ReportRow {
                    case: case.to_owned(),
                    ..row.clone()
                };
                self.report.rows.push(row);
                self.notes.push(note);
            }
        }
    }

    /// Returns a number of one row, for a separate goal.
    pub(crate) fn row_value(
        &self,
        case: &str,
        variant: &str,
        value: fn(&ReportRow) -> f64,
    ) -> Option<f64> {
        self.report.find_row(case, variant).map(value)
    }

    /// Adds a number that is no ratio of two rows but has a goal of its own.
    pub(crate) fn add_figure(&mut self, ratio: GoalRatio) {
        self.report.ratios.push(ratio);
    }

    #[cfg(test)]
    pub(crate) fn figures(&self) -> &[GoalRatio] {
        &self.report.ratios
    }

    /// Says something below the table: what was left out and why, or what follows from some of its
    /// rows.
    pub(crate) fn add_remark(&mut self, line: String) {
        eprintln!("{line}");
        self.remarks.push(line);
    }

    /// Prints the table and writes the file. Returns whether every goal is met.
    pub(crate) fn finish(self) -> io::Result<bool> {
        print!("{}", table::render_table(&self.report, &self.notes));
        self.remarks.iter().for_each(|line| println!("\n{line}"));
        // Printed first: a full disk must not cost the figures of a run of an hour.
        let path = self.report.write_file()?;
        println!("\nwritten: {}", path.display());
        Ok(self.report.ratios.iter().all(GoalRatio::is_met))
    }

    /// The same for programs: prints what the file has.
    pub(crate) fn finish_as_json(self) -> io::Result<bool> {
        let path = self.report.write_file()?;
        eprintln!("written: {}", path.display());
        println!("{}", serde_json::to_string_pretty(&self.report)?);
        Ok(self.report.ratios.iter().all(GoalRatio::is_met))
    }
}

/// Goal of a ratio, and the figure that the ratio compares.
pub(crate) struct RatioGoal {
    pub(crate) value: fn(&ReportRow) -> f64,
    pub(crate) better: BetterDirection,
    pub(crate) goal: f64,
}

/// The order of the variants in a round: forward, backward, forward, …
fn round_order(variants: usize, round: usize) -> Vec<usize> {
    let forward = 0..variants;
    // Turned order cancels linear drift within a round over pairs of rounds.
    if round.is_multiple_of(2) {
        forward.collect()
    } else {
        forward.rev().collect()
    }
}

fn median_row(case: &str, variant: &str, samples: &[RoundSample]) -> ReportRow {
    let of = |value: fn(&RoundSample) -> f64| median_of(samples.iter().map(value));
    ReportRow {
        case: case.to_owned(),
        variant: variant.to_owned(),
        n: samples.iter().map(|sample| sample.n).sum(),
        p50_us: of(|sample| sample.p50_us),
        p99_us: of(|sample| sample.p99_us),
        rps: of(|sample| sample.rps),
        cpu_us_per_request: of(|sample| sample.cpu_us_per_request),
        failed: samples.iter().map(|sample| sample.failed).sum(),
    }
}

fn row_note(measured: &[LoadSample]) -> RowNote {
    let known: Vec<_> = measured.iter().filter_map(|one| one.client_us).collect();
    let client_us = (!known.is_empty()).then(|| median_of(known.into_iter()));
    RowNote {
        spread: spread_of(measured.iter().map(|one| one.sample.rps)),
        client_us,
    }
}

/// The middle value; the mean of the two middle ones when there is an even number; 0 of none.
pub(crate) fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        // midpoint cannot overflow, as the sum of two large figures could.
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Largest minus smallest, as a share of the median.
fn spread_of(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    let ends = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| {
        (low.min(*v), high.max(*v))
    });
    match median_of(values.iter().copied()) {
        // No median, no share: division by zero would print NaN beside every failed row.
        0.0 => 0.0,
        middle => (ends.1 - ends.0) / middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(rps: f64) -> RoundSample {
        RoundSample {
            n: 10,
            failed: 1,
            p50_us: 1.0,
            p99_us: 2.0,
            rps,
            cpu_us_per_request: 1e6 / rps,
        }
    }

    #[tokio::test]
    async fn variants_take_turns_and_the_median_counts() {
        let (mut comparison, mut order) = (BenchComparison::new("test", 3), Vec::new());
        let speeds = [[100.0, 900.0, 110.0], [200.0, 220.0, 1.0]];
        let mut seen = [0, 0];
        let measure = async |variant: usize| {
            order.push(variant);
            seen[variant] += 1;
            Ok::<_, io::Error>(sample(speeds[variant][seen[variant] - 1]))
        };
        comparison
            .measure_case("c", &["a", "b"], measure)
            .await
            .unwrap();
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
        let row = comparison.report.find_row("c", "a").unwrap();
        assert_eq!((row.rps, row.n, row.failed), (110.0, 30, 3));
        let goal = RatioGoal {
            value: |row| row.rps,
            better: BetterDirection::Higher,
            goal: 0.5,
        };
        comparison.add_ratio("a/b", "c", "a", "b", goal);
        assert_eq!(comparison.report.ratios[0].value, 0.55);
    }

    #[test]
    fn the_best_is_the_fastest_that_is_stable() {
        let mut comparison = BenchComparison::new("test", 1);
        for (case, rps, failed) in [("1", 10.0, 0), ("8", 30.0, 0), ("64", 50.0, 1)] {
            comparison.report.rows.push(median_row(
                case,
                "a",
                &[RoundSample {
                    failed,
                    ..sample(rps)
                }],
            ));
            comparison.notes.push(RowNote {
                spread: rps,
                client_us: Some(rps),
            });
        }
        comparison.add_best("highest", &["a", "nobody"], |row| row.failed == 0);
        assert_eq!(
            comparison.row_value("highest", "a", |row| row.rps),
            Some(30.0)
        );
        assert_eq!(
            (comparison.report.rows.len(), comparison.notes[3].spread),
            (4, 30.0)
        );
    }

    #[test]
    fn medians_and_spread() {
        assert_eq!(median_of([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median_of([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median_of(std::iter::empty()), 0.0);
        assert_eq!(spread_of([90.0, 100.0, 120.0].into_iter()), 0.3);
        assert_eq!(spread_of(std::iter::empty()), 0.0);
    }

    proptest! {
        #[test]
        fn half_are_not_above_and_half_not_below(values in proptest::collection::vec(-1e9f64..1e9, 1..50)) {
            let middle = median_of(values.iter().copied());
            prop_assert!(values.iter().filter(|v| **v < middle).count() * 2 <= values.len());
            prop_assert!(values.iter().filter(|v| **v > middle).count() * 2 <= values.len());
        }
    }
}
