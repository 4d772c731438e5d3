//! A chain of many workers and one pair of workers: the rate at the end, with and without a rate
//! limit per machine, and the time of one batch.

use std::time::{Duration, Instant};

use nearpath_testkit::lab::LinkConditions as Line;
use nearpath_testkit::lab::nat::{NatKind, NatPlan, NatSite};

use super::PunchArgs;
use super::throughput::cap_rate;
use crate::compare::{BenchComparison, BetterDirection, RatioGoal, RoundSample};
use crate::cpu;
use crate::p2p::chain::{BATCH_BYTES, DataflowChain};
use crate::p2p::fixture::RendezvousSetup;
use crate::p2p::stream::MEGABYTE;
use crate::remote::BenchError;
use crate::tally::RequestTally;

/// Warm-up of a rate measurement: queues fill.
const WARM_UP_PERIOD: Duration = Duration::from_secs(1);
/// Number of single batches.
const SINGLE_BATCHES: usize = 3;
const SMALL_BYTES: usize = 100;

/// Measures with and without a rate limit.
pub(super) async fn measure(
    args: &PunchArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    if args.workers < 2 || !args.wants_case("chain") {
        return Ok(());
    }
    let name = format!("chain of {}", args.workers);
    let caps = [
        (
            format!("chain, {} Mbit/s", args.chain_cap),
            Some(args.chain_cap),
        ),
        ("chain, no cap".to_owned(), None),
    ];
    for (case, limit) in caps.into_iter().filter(|(case, _)| args.wants_case(case)) {
        let setup = ChainSetup::set_up(args.workers, limit).await?;
        let took = |chain: &DataflowChain| format!("{:.2} s", chain.first.as_secs_f64());
        comparison.add_remark(format!(
            "{case}: the first byte passed the {name} {} after the last control connection (pair: {}); {:.2} s later every edge was direct",
            took(&setup.chains[1]), took(&setup.chains[0]), setup.settled.as_secs_f64()
        ));
        let variants = ["pair", name.as_str()];
        let rate = async |index: usize| setup.measure_rate(index, args.seconds);
        comparison.measure_case(&case, &variants, rate).await?;
        if limit.is_some() {
            let goal = RatioGoal {
                value: |row| row.rps,
                better: BetterDirection::Higher,
                goal: 0.9,
            };
            comparison.add_ratio(&format!("{case}, chain/pair"), &case, &name, "pair", goal);
        } else {
            comparison.add_remark(describe_cpu(comparison, &case, &variants));
        }
        for (size, bytes) in [("100 B", SMALL_BYTES), ("256 KiB", BATCH_BYTES)] {
            let transfer = async |index: usize| setup.measure_batch(index, bytes);
            comparison
                .measure_case(&format!("{case}: one batch of {size}"), &variants, transfer)
                .await?;
        }
    }
    Ok(())
}

/// Describes the number of busy processors, the bottleneck without a rate limit.
fn describe_cpu(comparison: &BenchComparison, case: &str, variants: &[&str; 2]) -> String {
    let usage = variants.map(|variant| {
        let of = |value| {
            comparison
                .row_value(case, variant, value)
                .unwrap_or(f64::NAN)
        };
        format!(
            "{variant} {:.2}",
            of(|row| row.rps) * of(|row| row.cpu_us_per_request) / 1e6
        )
    });
    format!("{case}: busy processors: {}", usage.join(", "))
}

/// A pair and a chain for all rounds. Only the measured one of them is active.
struct ChainSetup {
    chains: [DataflowChain; 2],
    settled: Duration,
    _sites: Vec<NatSite>,
    _fixture: RendezvousSetup,
}

impl ChainSetup {
    async fn set_up(workers: usize, limit: Option<u64>) -> Result<Self, BenchError> {
        let line = Line::plain();
        let mut fixture = RendezvousSetup::new(&line).await?;
        let mut sites = Vec::new();
        // Two more sites, for the pair.
        for _ in 0..workers + 2 {
            let site = fixture.internet.add_site(NatPlan {
                conditions: line.clone(),
                is_plain: true,
                ..NatKind::PortRestricted.into()
            })?;
            limit.map_or(Ok(()), |limit| cap_rate(&site.first_machine().node, limit))?;
            sites.push(site);
        }
        let all: Vec<_> = sites.iter().collect();
        let chains = [
            DataflowChain::start(&fixture, "pair", &all[..2])?,
            DataflowChain::start(&fixture, "chain", &all[2..])?,
        ];
        // Both are direct before any measurement: the relay's rate is another comparison.
        chains[0].wait_direct()?;
        let settled = chains[1].wait_direct()?;
        Ok(Self {
            chains,
            settled,
            _sites: sites,
            _fixture: fixture,
        })
    }

    /// Measures the rate at the end with filled queues. CPU time is that of all workers together,
    /// per received megabyte.
    fn measure_rate(&self, index: usize, duration: Duration) -> Result<RoundSample, BenchError> {
        let (begun, mut tally) = (Instant::now(), RequestTally::default());
        let (mut counted, mut since, mut last) = (0, None, begun);
        let mut spent = Duration::ZERO;
        self.chains[index].stream_batches(WARM_UP_PERIOD + duration, |octets| {
            let now = Instant::now();
            // The mark is set by a batch, so that no partial batch is counted.
            if since.is_none() && begun.elapsed() >= WARM_UP_PERIOD {
                (since, spent, last) = (Some(now), own_cpu(), now);
            } else if since.is_some() {
                counted += octets;
                let megabyte = (now - last).mul_f64(MEGABYTE as f64 / octets as f64);
                tally.record_outcome(Ok(megabyte));
                last = now;
            }
        })?;
        let megabytes = counted as f64 / MEGABYTE as f64;
        let took = since.map_or(Duration::MAX, |since| last - since);
        let cpu = (own_cpu().saturating_sub(spent)).as_secs_f64() * 1e6 / megabytes;
        let sample = RoundSample::from_tally(&tally, took, Duration::ZERO);
        Ok(RoundSample {
            rps: megabytes / took.as_secs_f64(),
            cpu_us_per_request: cpu,
            ..sample
        })
    }

    fn measure_batch(&self, index: usize, octets: usize) -> Result<RoundSample, BenchError> {
        let (mut tally, begun) = (RequestTally::default(), Instant::now());
        for _ in 0..SINGLE_BATCHES {
            tally.record_outcome(Ok(self.chains[index].send_through(octets)?));
        }
        Ok(RoundSample::from_tally(
            &tally,
            begun.elapsed(),
            Duration::ZERO,
        ))
    }
}

fn own_cpu() -> Duration {
    cpu::processes_cpu(&[std::process::id()])
}
