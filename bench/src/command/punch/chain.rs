//! A chain of many workers against one pair of them: the rate at its end, each machine's capped alike and without a cap, and how long one batch takes
//! through all of it.

use std::time::{Duration, Instant};

use nearpath_testkit::lab::LinkConditions as Line;
use nearpath_testkit::lab::nat::{NatKind, NatPlan, NatSite};

use super::Args;
use super::throughput::cap;
use crate::compare::{Better, Comparison, Goal, Sample};
use crate::cpu;
use crate::p2p::chain::{BATCH, Chain};
use crate::p2p::stream::MEGABYTE;
use crate::p2p::town::Town;
use crate::remote::Error;
use crate::tally::Tally;

/// Before a measurement of a rate counts: queues fill.
const WARM_UP: Duration = Duration::from_secs(1);
/// Batches that go through one after another.
const ALONE: usize = 3;
const SMALL: usize = 100;

/// With the cap and without.
pub(super) async fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    if args.workers < 2 || !args.wants("chain") {
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
    for (case, limit) in caps.into_iter().filter(|(case, _)| args.wants(case)) {
        let stage = Stage::set(args.workers, limit).await?;
        let took = |chain: &Chain| format!("{:.2} s", chain.first.as_secs_f64());
        comparison.remark(format!(
            "{case}: the first byte was through the {name} {} after all lines were there (pair: {}); {:.2} s later every edge was direct",
            took(&stage.chains[1]), took(&stage.chains[0]), stage.settled.as_secs_f64()
        ));
        let variants = ["pair", name.as_str()];
        let rate = async |index: usize| stage.rate(index, args.seconds);
        comparison.case(&case, &variants, rate).await?;
        if limit.is_some() {
            let goal = Goal {
                value: |row| row.rps,
                better: Better::Higher,
                goal: 0.9,
            };
            comparison.ratio(&format!("{case}, chain/pair"), &case, &name, "pair", goal);
        } else {
            comparison.remark(busy(comparison, &case, &variants));
        }
        for (what, octets) in [("100 octets", SMALL), ("256 KiB", BATCH)] {
            let through = async |index: usize| stage.through(index, octets);
            comparison
                .case(&format!("{case}: {what} alone through"), &variants, through)
                .await?;
        }
    }
    Ok(())
}

/// Without a cap the processors are what limits it: how many of them were busy with it.
fn busy(comparison: &Comparison, case: &str, variants: &[&str; 2]) -> String {
    let told = variants.map(|variant| {
        let of = |value| comparison.value(case, variant, value).unwrap_or(f64::NAN);
        format!(
            "{variant} {:.2}",
            of(|row| row.rps) * of(|row| row.cpu_us_per_request) / 1e6
        )
    });
    format!("{case}: processors busy with it: {}", told.join(", "))
}

/// A pair and a chain, which stand for all rounds. While one is measured, the other one does nothing.
struct Stage {
    chains: [Chain; 2],
    settled: Duration,
    _sites: Vec<NatSite>,
    _town: Town,
}

impl Stage {
    async fn set(workers: usize, limit: Option<u64>) -> Result<Self, Error> {
        let line = Line::plain();
        let mut town = Town::new(&line).await?;
        let mut sites = Vec::new();
        for _ in 0..workers + 2 {
            let site = town.internet.add_site(NatPlan {
                conditions: line.clone(),
                is_plain: true,
                ..NatKind::PortRestricted.into()
            })?;
            limit.map_or(Ok(()), |limit| cap(&site.first_machine().node, limit))?;
            sites.push(site);
        }
        let all: Vec<_> = sites.iter().collect();
        let chains = [
            Chain::start(&town, "pair", &all[..2])?,
            Chain::start(&town, "chain", &all[2..])?,
        ];
        chains[0].settle()?;
        let settled = chains[1].settle()?;
        Ok(Self {
            chains,
            settled,
            _sites: sites,
            _town: town,
        })
    }

    /// At the end, once queues are filled. CPU time is that of all workers together, for a megabyte that arrives.
    fn rate(&self, index: usize, duration: Duration) -> Result<Sample, Error> {
        let (begun, mut tally) = (Instant::now(), Tally::default());
        let (mut counted, mut since, mut last) = (0, None, begun);
        let mut spent = Duration::ZERO;
        self.chains[index].stream(WARM_UP + duration, |octets| {
            let now = Instant::now();
            if since.is_none() && begun.elapsed() >= WARM_UP {
                (since, spent, last) = (Some(now), own_cpu(), now);
            } else if since.is_some() {
                counted += octets;
                let megabyte = (now - last).mul_f64(MEGABYTE as f64 / octets as f64);
                tally.add(Ok(megabyte));
                last = now;
            }
        })?;
        let megabytes = counted as f64 / MEGABYTE as f64;
        let took = since.map_or(Duration::MAX, |since| last - since);
        let cpu = (own_cpu().saturating_sub(spent)).as_secs_f64() * 1e6 / megabytes;
        let sample = Sample::of(&tally, took, Duration::ZERO);
        Ok(Sample {
            rps: megabytes / took.as_secs_f64(),
            cpu_us_per_request: cpu,
            ..sample
        })
    }

    fn through(&self, index: usize, octets: usize) -> Result<Sample, Error> {
        let (mut tally, begun) = (Tally::default(), Instant::now());
        for _ in 0..ALONE {
            tally.add(Ok(self.chains[index].through(octets)?));
        }
        Ok(Sample::of(&tally, begun.elapsed(), Duration::ZERO))
    }
}

fn own_cpu() -> Duration {
    cpu::alone(&[std::process::id()])
}
