//! CPU time of a chain of three functions over two workers, in an open loop.
//!
//! One measurement has two rows: the control node, and the platform's part of the workers. The platform's
//! part is that of all processes but the functions' own programs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::measure::measure_cpu_apart;
use super::super::nodes::{max_goal, on_first_machine};
use super::DirectArgs;
use crate::by_name::chain_fixture::{ChainFixture, ChainWay, MACHINES};
use crate::by_name::chain_program::ChainProgram;
use crate::compare::{BenchComparison, RoundSample};
use crate::load::RequestTemplate;
use crate::load::closed::ConnectionReuse;
use crate::load::open;
use crate::load::schedule::ArrivalSchedule;
use crate::nodes::machines::MachineLab;
use crate::remote::BenchError;

const WAYS: [ChainWay; 2] = [ChainWay::ByName, ChainWay::Gateway];
/// Length of the chains.
const LENGTH: usize = 3;
/// Minimum number of requests of a measurement: low rates need a longer one.
const MIN_REQUESTS: f64 = 200.0;
/// Goals relative to the gateway: less by 60 %, and by 30 %.
const GOAL_CONTROL: f64 = 0.4;
const GOAL_WORKERS: f64 = 0.7;

/// Parts of the CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CpuPart {
    Control,
    Workers,
}

/// Chains of a program, and what of a measurement its other row has still to get.
struct CpuFixture<'a> {
    args: &'a DirectArgs,
    chains: ChainFixture,
    waiting: RefCell<BTreeMap<usize, RoundSample>>,
}

/// Measures all rates.
pub(super) fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let nested = ChainProgram::nested()?;
    measure_program(args, ("Python", nested, &args.rates), comparison)?;
    // Without rates Go is not needed.
    if args.compiled_rates.is_empty() {
        return Ok(());
    }
    let compiled = ChainProgram::compiled()?;
    measure_program(args, ("Go", compiled, &args.compiled_rates), comparison)
}

fn measure_program(
    args: &DirectArgs,
    (language, program, rates): (&str, ChainProgram, &[f64]),
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&MACHINES, Duration::ZERO)?;
    on_first_machine(&lab, async || {
        let fixture = CpuFixture {
            args,
            chains: ChainFixture::start(lab.machines(), program).await?,
            waiting: RefCell::default(),
        };
        for &rate in rates {
            let case = format!("CPU of a chain of {LENGTH}, {language}, {rate} per second");
            let names = row_names();
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let one = async |row: usize| fixture.measure_row(row, rate).await;
            comparison.measure_case(&case, &names, one).await?;
            add_goals(comparison, &case);
        }
        Ok(())
    })
}

/// Returns the names of the rows: each way with each part.
fn row_names() -> [String; 4] {
    [0, 1, 2, 3].map(|row| row_name(WAYS[row % 2], part_of(row)))
}

fn row_name(way: ChainWay, part: CpuPart) -> String {
    let part = match part {
        CpuPart::Control => "control node",
        CpuPart::Workers => "workers without handlers",
    };
    format!("{}: {part}", way.name())
}

fn part_of(row: usize) -> CpuPart {
    match row < WAYS.len() {
        true => CpuPart::Control,
        false => CpuPart::Workers,
    }
}

fn add_goals(comparison: &mut BenchComparison, case: &str) {
    for (part, text, goal) in [
        (CpuPart::Control, "control node", GOAL_CONTROL),
        (CpuPart::Workers, "workers without handlers", GOAL_WORKERS),
    ] {
        let [over, under] = WAYS.map(|way| row_name(way, part));
        let name = format!("{case}, {text}, by name/gateway");
        let goal = max_goal(|row| row.cpu_us_per_request, goal);
        comparison.add_ratio(&name, case, &over, &under, goal);
    }
}

impl CpuFixture<'_> {
    /// Measures a row, or returns what the measurement of its other part has left.
    async fn measure_row(&self, row: usize, rate: f64) -> Result<RoundSample, BenchError> {
        if let Some(sample) = self.waiting.borrow_mut().remove(&row) {
            return Ok(sample);
        }
        let ways = WAYS.len();
        let [control, workers] = self.measure_way(WAYS[row % ways], rate).await?;
        let (own, other) = match part_of(row) {
            CpuPart::Control => (control, workers),
            CpuPart::Workers => (workers, control),
        };
        let other_row = (row + ways) % (2 * ways);
        self.waiting.borrow_mut().insert(other_row, other);
        Ok(own)
    }

    /// Returns the samples of both parts.
    async fn measure_way(&self, way: ChainWay, rate: f64) -> Result<[RoundSample; 2], BenchError> {
        let length = self.args.measure.length().as_secs_f64();
        // Ten requests in a second would have the CPU time of timers, not of calls.
        let length = Duration::from_secs_f64(length.max(MIN_REQUESTS / rate));
        let template = RequestTemplate::for_get(
            self.chains.client_addr(way),
            &self.chains.client_path(way, LENGTH),
        )?;
        let schedule = ArrivalSchedule::new(rate, length + self.args.measure.warm_up());
        let window = self.args.measure.start_window_of(length);
        let start = tokio::time::Instant::now();
        let load = open::run_open(&template, schedule, ConnectionReuse::KeepAlive, start);
        let [control, workers] = [self.chains.control_pids(), self.chains.worker_pids()];
        // Read for each measurement: an instance may have been replaced.
        let handlers = self.chains.handler_pids();
        let workers = measure_cpu_apart(load, window, &workers, &handlers);
        // A second reader of the same window: the parts have no common root.
        let control = measure_cpu_apart(std::future::ready(()), window, &control, &[]);
        let ((done, (all, own)), ((), (control, _))) = tokio::join!(workers, control);
        let from = window.from - start;
        let mut done = done?;
        // The warm-up has the same rate, and is not counted.
        done.retain(|one| one.intended >= from);
        let tally = open::tally_outcomes(&done);
        if tally.failed_count() > 0 {
            eprintln!("{}: {:?}", way.name(), tally.failures_by_kind());
        }
        let sample = |cpu| RoundSample::from_tally(&tally, length, cpu);
        Ok([sample(control), sample(all.saturating_sub(own))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let names = row_names();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert!(names[0].ends_with("control node"), "{names:?}");
        assert!(names[3].ends_with("workers without handlers"), "{names:?}");
    }
}
