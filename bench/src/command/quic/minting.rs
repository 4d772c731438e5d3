//! What a session costs before it is used, and whether calls notice that others are minted.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearpath_wire::zero_rtt::Provision;

use super::{Args, near};
use crate::compare::{Better, Comparison, Ratio};
use crate::remote::site::{Identity, Site, mint};
use crate::remote::{Error, drive};
use crate::tally::Tally;

/// CPU time of a mint that a worker may cost, in microseconds.
const GOAL_US: f64 = 600.0;
/// Where callers of workers that are never started are.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Certificates apart, sessions one after another for one worker each, and for all of them at once.
pub(super) fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    if args.mints == 0 || !args.wants("mint") {
        return Ok(());
    }
    let site = Site::new()?;
    let gateway = site.gateway()?;
    let (mut certificates, mut mints) = (drive::Took::default(), drive::Took::default());
    let mut workers: Vec<Provision> = Vec::with_capacity(args.mints);
    for number in 0..args.mints {
        workers.push(timed(&mut certificates, || site.worker(number as u64))?);
    }
    for worker in &mut workers {
        timed(&mut mints, || mint(worker, &gateway, HERE))?;
    }
    let at_once = at_once(&mut workers, &gateway)?;
    let all = format!("sessions for {} workers at once", args.mints);
    for (variant, took) in [
        ("key and certificate", &certificates),
        ("session", &mints),
        (&all, &at_once),
    ] {
        comparison.measured(
            "mint",
            variant,
            near::told("mint", variant, took).measured(),
        );
    }
    eprintln!("{all}: {:.0} ms", at_once.time.as_secs_f64() * 1e3);
    let us = |tally: &Tally| tally.us(0.5);
    let figure = |name: &str, value, goal| Ratio {
        name: name.to_owned(),
        value,
        better: Better::Lower,
        goal,
    };
    comparison.figure(figure("CPU µs of a mint, p50", us(&mints.tally), GOAL_US));
    Ok(())
}

/// One more session for each, by as many threads as there are cores. Time is that until the last one is there.
fn at_once(workers: &mut [Provision], caller: &Identity) -> Result<drive::Took, Error> {
    let begun = Instant::now();
    let share = workers.len().div_ceil(crate::peers::cores()).max(1);
    let threads: Vec<Result<drive::Took, Error>> = thread::scope(|scope| {
        let start = |some: &'_ mut [Provision]| {
            let mut took = drive::Took::default();
            for worker in some {
                timed(&mut took, || mint(worker, caller, HERE))?;
            }
            Ok(took)
        };
        let running: Vec<_> = workers
            .chunks_mut(share)
            .map(|some| scope.spawn(move || start(some)))
            .collect();
        running
            .into_iter()
            .map(|one| one.join().expect("minting does not panic"))
            .collect()
    });
    let mut all = drive::Took::default();
    for took in threads {
        let took = took?;
        all.tally.merge(&took.tally);
        all.caller += took.caller;
    }
    all.time = begun.elapsed();
    Ok(all)
}

/// Mints on a thread of its own, for one new worker after another, as long as `what` goes on. Returns what became of that, and how many.
pub(super) async fn beside<T>(what: impl Future<Output = T>) -> Result<(T, u64), Error> {
    let site = Site::new()?;
    let gateway = site.gateway()?;
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let told = std::sync::Arc::clone(&stop);
    let minting = thread::spawn(move || -> Result<u64, Error> {
        for number in 0.. {
            if told.load(Ordering::Relaxed) {
                return Ok(number);
            }
            mint(&mut site.worker(number)?, &gateway, HERE)?;
        }
        Ok(0)
    });
    let done = what.await;
    stop.store(true, Ordering::Relaxed);
    Ok((done, minting.join().expect("minting does not panic")?))
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
