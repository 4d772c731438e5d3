//! The one way to set variants against each other.
//!
//! A machine's speed drifts, and its neighbours make noise. So the variants of a case run one after the other within each
//! round, in turned order every other round, and what is reported is the median over the rounds. The spread (largest minus
//! smallest, by the median) is printed beside it: a difference smaller than the spread is none.

mod report;
pub(crate) mod results_page;
mod table;

use std::io;
use std::time::Duration;

use crate::load::Window;
use crate::load::lean::Loaded;
use crate::tally::Tally;

pub(crate) use report::{Better, Ratio, Report, Row};

/// Rounds that every comparison makes at least.
pub(crate) const ROUNDS: usize = 5;

/// What one variant showed in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Requests answered.
    pub(crate) n: u64,
    /// Requests that failed.
    pub(crate) failed: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Requests answered a second.
    pub(crate) rps: f64,
    /// CPU time of the processes under test, by request answered.
    pub(crate) cpu_us_per_request: f64,
}

impl Sample {
    /// What `tally` counted in a window of this length, in which the processes under test spent `cpu`.
    pub(crate) fn of(tally: &Tally, length: Duration, cpu: Duration) -> Self {
        Self {
            n: tally.answered(),
            failed: tally.failed(),
            p50_us: tally.us(0.5),
            p99_us: tally.us(0.99),
            rps: tally.answered() as f64 / length.as_secs_f64(),
            cpu_us_per_request: cpu.as_nanos() as f64 / 1e3 / tally.answered().max(1) as f64,
        }
    }
}

/// A sample, and what the load generator spent beside it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    sample: Sample,
    /// CPU time of the load generator itself, in microseconds by request answered; none: not known.
    client_us: Option<f64>,
}

impl Measured {
    /// What was counted in `window`, in which the processes under test spent `cpu`.
    pub(crate) fn of(loaded: &Loaded, window: Window, cpu: Duration) -> Self {
        Self {
            sample: Sample::of(&loaded.tally, window.length(), cpu),
            client_us: Some(loaded.own_us()),
        }
    }
}

impl Measured {
    /// Of which the load generator's part is known; `sample` has it in its CPU time where the generator is one of the two sides.
    pub(crate) fn with_client(sample: Sample, client_us: f64) -> Self {
        Self {
            sample,
            client_us: Some(client_us),
        }
    }
}

impl From<Sample> for Measured {
    fn from(sample: Sample) -> Self {
        Self {
            sample,
            client_us: None,
        }
    }
}

/// What is told of a row to people only.
#[derive(Debug, Clone, Copy)]
struct Note {
    /// Of the rates, as a share of the median.
    spread: f64,
    /// See [`Measured`].
    client_us: Option<f64>,
}

/// A comparison that is being made.
pub(crate) struct Comparison {
    report: Report,
    /// One a row.
    notes: Vec<Note>,
    /// Lines below the table, for people only.
    remarks: Vec<String>,
    rounds: usize,
}

impl Comparison {
    /// `name` is the file's name in `bench/results`.
    pub(crate) fn new(name: &str, rounds: usize) -> Self {
        Self {
            report: Report::new(name),
            notes: Vec::new(),
            remarks: Vec::new(),
            rounds: rounds.max(1),
        }
    }

    /// Measures every variant in every round of one case. `measure` gets the variant's index.
    pub(crate) async fn case<E>(
        &mut self,
        case: &str,
        variants: &[&str],
        mut measure: impl AsyncFnMut(usize) -> Result<Sample, E>,
    ) -> Result<(), E> {
        self.loads(case, variants, async |index| {
            measure(index).await.map(Measured::from)
        })
        .await
    }

    /// The same, where it is known what the load cost itself.
    pub(crate) async fn loads<E>(
        &mut self,
        case: &str,
        variants: &[&str],
        mut measure: impl AsyncFnMut(usize) -> Result<Measured, E>,
    ) -> Result<(), E> {
        let mut samples: Vec<Vec<Measured>> = vec![Vec::new(); variants.len()];
        eprintln!("{case}: {} rounds of {}", self.rounds, variants.join(", "));
        for round in 0..self.rounds {
            for index in turn(variants.len(), round) {
                samples[index].push(measure(index).await?);
            }
        }
        for (variant, measured) in variants.iter().zip(&samples) {
            let samples: Vec<_> = measured.iter().map(|one| one.sample).collect();
            self.report.rows.push(row(case, variant, &samples));
            self.notes.push(note(measured));
        }
        Ok(())
    }

    /// Adds a row that is no median of rounds: what it counts was done once.
    pub(crate) fn measured(&mut self, case: &str, variant: &str, measured: Measured) {
        self.report
            .rows
            .push(row(case, variant, &[measured.sample]));
        self.notes.push(note(&[measured]));
    }

    /// Adds a ratio between two rows of a case: `value` of `over` divided by that of `under`.
    pub(crate) fn ratio(&mut self, name: &str, case: &str, over: &str, under: &str, goal: Goal) {
        let of = |variant| self.report.row(case, variant).map(goal.value);
        if let (Some(over), Some(under)) = (of(over), of(under)) {
            self.report.ratios.push(Ratio {
                name: name.to_owned(),
                value: over / under,
                better: goal.better,
                goal: goal.goal,
            });
        }
    }

    /// A case of its own: of each variant the row with the highest rate among those of all cases that `stable` lets through.
    pub(crate) fn best(&mut self, case: &str, variants: &[&str], stable: impl Fn(&Row) -> bool) {
        for variant in variants {
            let rows = self
                .report
                .rows
                .iter()
                .zip(&self.notes)
                .filter(|(row, _)| row.variant == *variant);
            let best = rows
                .filter(|(row, _)| stable(row))
                .max_by(|(a, _), (b, _)| a.rps.total_cmp(&b.rps));
            if let Some((row, &note)) = best {
                let row = Row {
                    case: case.to_owned(),
                    ..row.clone()
                };
                self.report.rows.push(row);
                self.notes.push(note);
            }
        }
    }

    /// A number of one row, for a goal of its own.
    pub(crate) fn value(&self, case: &str, variant: &str, value: fn(&Row) -> f64) -> Option<f64> {
        self.report.row(case, variant).map(value)
    }

    /// Adds a number that is no ratio of two rows but has a goal of its own.
    pub(crate) fn figure(&mut self, ratio: Ratio) {
        self.report.ratios.push(ratio);
    }

    /// Says something below the table: what was left out and why, or what follows from some of its rows.
    pub(crate) fn remark(&mut self, line: String) {
        eprintln!("{line}");
        self.remarks.push(line);
    }

    /// Prints the table and writes the file. Returns whether every goal is met.
    pub(crate) fn finish(self) -> io::Result<bool> {
        print!("{}", table::render(&self.report, &self.notes));
        self.remarks.iter().for_each(|line| println!("\n{line}"));
        let path = self.report.write()?;
        println!("\nwritten: {}", path.display());
        Ok(self.report.ratios.iter().all(Ratio::is_met))
    }

    /// The same for programs: prints what the file has.
    pub(crate) fn finish_as_json(self) -> io::Result<bool> {
        let path = self.report.write()?;
        eprintln!("written: {}", path.display());
        println!("{}", serde_json::to_string_pretty(&self.report)?);
        Ok(self.report.ratios.iter().all(Ratio::is_met))
    }
}

/// What a ratio compares, and what it should reach.
pub(crate) struct Goal {
    pub(crate) value: fn(&Row) -> f64,
    pub(crate) better: Better,
    pub(crate) goal: f64,
}

/// The order of the variants in a round: forward, backward, forward, …
fn turn(variants: usize, round: usize) -> Vec<usize> {
    let forward = 0..variants;
    if round.is_multiple_of(2) {
        forward.collect()
    } else {
        forward.rev().collect()
    }
}

fn row(case: &str, variant: &str, samples: &[Sample]) -> Row {
    let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
    Row {
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

fn note(measured: &[Measured]) -> Note {
    let known: Vec<_> = measured.iter().filter_map(|one| one.client_us).collect();
    let client_us = (!known.is_empty()).then(|| median(known.into_iter()));
    Note {
        spread: spread(measured.iter().map(|one| one.sample.rps)),
        client_us,
    }
}

/// The middle value; the mean of the two middle ones when there is an even number; 0 of none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Largest minus smallest, as a share of the median.
fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    let ends = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| {
        (low.min(*v), high.max(*v))
    });
    match median(values.iter().copied()) {
        0.0 => 0.0,
        middle => (ends.1 - ends.0) / middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(rps: f64) -> Sample {
        Sample {
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
        let (mut comparison, mut order) = (Comparison::new("test", 3), Vec::new());
        let speeds = [[100.0, 900.0, 110.0], [200.0, 220.0, 1.0]];
        let mut seen = [0, 0];
        let measure = async |variant: usize| {
            order.push(variant);
            seen[variant] += 1;
            Ok::<_, io::Error>(sample(speeds[variant][seen[variant] - 1]))
        };
        comparison.case("c", &["a", "b"], measure).await.unwrap();
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
        let row = comparison.report.row("c", "a").unwrap();
        assert_eq!((row.rps, row.n, row.failed), (110.0, 30, 3));
        let goal = Goal {
            value: |row| row.rps,
            better: Better::Higher,
            goal: 0.5,
        };
        comparison.ratio("a/b", "c", "a", "b", goal);
        assert_eq!(comparison.report.ratios[0].value, 0.55);
    }

    #[test]
    fn the_best_is_the_fastest_that_is_stable() {
        let mut comparison = Comparison::new("test", 1);
        for (case, rps, failed) in [("1", 10.0, 0), ("8", 30.0, 0), ("64", 50.0, 1)] {
            comparison.report.rows.push(row(
                case,
                "a",
                &[Sample {
                    failed,
                    ..sample(rps)
                }],
            ));
            comparison.notes.push(Note {
                spread: rps,
                client_us: Some(rps),
            });
        }
        comparison.best("highest", &["a", "nobody"], |row| row.failed == 0);
        assert_eq!(comparison.value("highest", "a", |row| row.rps), Some(30.0));
        assert_eq!(
            (comparison.report.rows.len(), comparison.notes[3].spread),
            (4, 30.0)
        );
    }

    #[test]
    fn medians_and_spread() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
        assert_eq!(spread([90.0, 100.0, 120.0].into_iter()), 0.3);
        assert_eq!(spread(std::iter::empty()), 0.0);
    }

    proptest! {
        #[test]
        fn half_are_not_above_and_half_not_below(values in proptest::collection::vec(-1e9f64..1e9, 1..50)) {
            let middle = median(values.iter().copied());
            prop_assert!(values.iter().filter(|v| **v < middle).count() * 2 <= values.len());
            prop_assert!(values.iter().filter(|v| **v > middle).count() * 2 <= values.len());
        }
    }
}
