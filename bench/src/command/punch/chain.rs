//! Compares a chain of many workers with one pair of workers.
//!
//! The cases are the rate at the last worker, with and without a rate limit per machine, and the
//! time of one batch.

use std::time::{Duration, Instant};

use nearpath_testkit::lab::LinkConditions;
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

/// Time before a rate measurement in which the queues fill.
const WARM_UP_PERIOD: Duration = Duration::from_secs(1);
/// Number of batches whose time is measured, one after the other.
const SINGLE_BATCHES: usize = 3;
const SMALL_BATCH_BYTES: usize = 100;

/// Measures with and without a rate limit.
pub(super) async fn measure(
    args: &PunchArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    // A chain needs two workers.
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
        let first_batch =
            |chain: &DataflowChain| format!("{:.2} s", chain.first_batch_after.as_secs_f64());
        comparison.add_remark(format!(
            "{case}: the first byte passed the {name} {} after the last control connection (pair: {}); {:.2} s later every edge was direct",
            first_batch(&setup.chains[1]), first_batch(&setup.chains[0]), setup.direct_after.as_secs_f64()
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
        for (size, bytes) in [("100 B", SMALL_BATCH_BYTES), ("256 KiB", BATCH_BYTES)] {
            let transfer = async |index: usize| setup.measure_batch(index, bytes);
            comparison
                .measure_case(&format!("{case}: one batch of {size}"), &variants, transfer)
                .await?;
        }
    }
    Ok(())
}

/// Describes the number of busy processors: they are the bottleneck without a rate limit.
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

/// A pair and a chain for all rounds. Only the one being measured sends.
struct ChainSetup {
    chains: [DataflowChain; 2],
    /// Time until all edges of the chain were direct, see [`DataflowChain::wait_direct`].
    direct_after: Duration,
    // Kept alive: the workers run in these networks and use this rendezvous.
    _sites: Vec<NatSite>,
    _fixture: RendezvousSetup,
}

impl ChainSetup {
    async fn set_up(workers: usize, limit: Option<u64>) -> Result<Self, BenchError> {
        let conditions = LinkConditions::plain();
        let mut fixture = RendezvousSetup::new(&conditions).await?;
        let mut sites = Vec::new();
        // Two more sites, for the pair.
        for _ in 0..workers + 2 {
            let site = fixture.internet.add_site(NatPlan {
                conditions: conditions.clone(),
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
        // All edges are direct before a measurement: another comparison measures the relay.
        chains[0].wait_direct()?;
        let direct_after = chains[1].wait_direct()?;
        Ok(Self {
            chains,
            direct_after,
            _sites: sites,
            _fixture: fixture,
        })
    }

    /// Measures the rate at the last worker with filled queues. A "request" of the sample is one
    /// received megabyte; its CPU time is that of all workers together.
    fn measure_rate(&self, index: usize, duration: Duration) -> Result<RoundSample, BenchError> {
        let (begun, mut tally) = (Instant::now(), RequestTally::default());
        let (mut received_bytes, mut measured_from, mut last_batch) = (0, None, begun);
        let mut cpu_before = Duration::ZERO;
        self.chains[index].stream_batches(WARM_UP_PERIOD + duration, |bytes| {
            let now = Instant::now();
            // The measured period starts with the end of a batch, so that it has no partial batch.
            if measured_from.is_none() && begun.elapsed() >= WARM_UP_PERIOD {
                (measured_from, cpu_before, last_batch) = (Some(now), own_cpu(), now);
            } else if measured_from.is_some() {
                received_bytes += bytes;
                let per_megabyte = (now - last_batch).mul_f64(MEGABYTE as f64 / bytes as f64);
                tally.record_outcome(Ok(per_megabyte));
                last_batch = now;
            }
        })?;
        let megabytes = received_bytes as f64 / MEGABYTE as f64;
        // Without a batch after the warm-up the rate is 0.
        let elapsed = measured_from.map_or(Duration::MAX, |from| last_batch - from);
        let cpu_us = (own_cpu().saturating_sub(cpu_before)).as_secs_f64() * 1e6;
        let sample = RoundSample::from_tally(&tally, elapsed, Duration::ZERO);
        Ok(RoundSample {
            rps: megabytes / elapsed.as_secs_f64(),
            cpu_us_per_request: cpu_us / megabytes,
            ..sample
        })
    }

    fn measure_batch(&self, index: usize, bytes: usize) -> Result<RoundSample, BenchError> {
        let (mut tally, begun) = (RequestTally::default(), Instant::now());
        for _ in 0..SINGLE_BATCHES {
            tally.record_outcome(Ok(self.chains[index].send_through(bytes)?));
        }
        Ok(RoundSample::from_tally(
            &tally,
            begun.elapsed(),
            Duration::ZERO,
        ))
    }
}

/// CPU time of this process, in which all workers run.
fn own_cpu() -> Duration {
    cpu::processes_cpu(&[std::process::id()])
}
