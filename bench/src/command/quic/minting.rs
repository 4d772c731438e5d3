//! What a session costs before it is used.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use nearpath_wire::early::Provision;

use super::{Args, near};
use crate::apart::site::{Site, mint};
use crate::apart::{Error, Way, drive};
use crate::compare::{Better, Comparison, Ratio};
use crate::tally::Tally;

/// CPU time of a mint that a worker may cost, in microseconds.
const GOAL_US: f64 = 600.0;

/// Certificates apart, sessions one after another for one worker each, and for all of them at once.
pub(super) fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    if args.mints == 0 || !args.wants("mint") {
        return Ok(());
    }
    let (site, here) = (Site::new()?, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let gateway = site.gateway()?;
    let (mut certificates, mut mints) = (drive::Took::default(), drive::Took::default());
    let mut workers: Vec<Provision> = Vec::with_capacity(args.mints);
    for number in 0..args.mints {
        workers.push(timed(&mut certificates, || site.worker(number as u64))?);
    }
    for worker in &mut workers {
        timed(&mut mints, || mint(worker, &gateway, here))?;
    }
    for (variant, took) in [("key and certificate", &certificates), ("session", &mints)] {
        comparison.measured("mint", variant, near::told("mint", Way::QuicEarly, took).measured());
    }
    let us = |tally: &Tally| tally.us(0.5);
    let figure = |name: &str, value, goal| Ratio { name: name.to_owned(), value, better: Better::Lower, goal };
    comparison.figure(figure("CPU µs of a mint, p50", us(&mints.tally), GOAL_US));
    Ok(())
}

/// Latency is CPU time here: nothing is waited for.
fn timed<T>(took: &mut drive::Took, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let (before, begun) = (drive::own(), Instant::now());
    let done = work()?;
    let spent: Duration = drive::own() - before;
    took.tally.add(Ok(spent));
    took.caller += spent;
    took.time += begun.elapsed();
    Ok(done)
}
