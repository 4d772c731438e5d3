//! Cost of a session before its use, and the effect of minting on concurrent calls.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearpath_wire::zero_rtt::Provision;

use super::{QuicArgs, near};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio};
use crate::remote::identities::{BenchAuthority, CallIdentity, mint_session};
use crate::remote::{BenchError, drive};
use crate::tally::RequestTally;

/// Goal for the CPU time of a mint, in microseconds.
const GOAL_US: f64 = 600.0;
/// Address of the callers of workers that are never started.
const CALLER_ADDR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Measures certificates, then sessions for one worker each in sequence, and for all workers
/// concurrently.
pub(super) fn measure(args: &QuicArgs, comparison: &mut BenchComparison) -> Result<(), BenchError> {
    if args.mints == 0 || !args.wants_case("mint") {
        return Ok(());
    }
    let site = BenchAuthority::new()?;
    let gateway = site.gateway_identity()?;
    let (mut certificates, mut mints) = (drive::CallTimes::default(), drive::CallTimes::default());
    let mut workers: Vec<Provision> = Vec::with_capacity(args.mints);
    for number in 0..args.mints {
        workers.push(time_cpu(&mut certificates, || {
            site.worker_provision(number as u64)
        })?);
    }
    for worker in &mut workers {
        time_cpu(&mut mints, || mint_session(worker, &gateway, CALLER_ADDR))?;
    }
    let at_once = mint_concurrently(&mut workers, &gateway)?;
    let all = format!("sessions for {} workers, concurrent", args.mints);
    for (variant, took) in [
        ("key and certificate", &certificates),
        ("session", &mints),
        (&all, &at_once),
    ] {
        comparison.add_single(
            "mint",
            variant,
            near::print_failures("mint", variant, took).to_sample(),
        );
    }
    eprintln!("{all}: {:.0} ms", at_once.time.as_secs_f64() * 1e3);
    let us = |tally: &RequestTally| tally.latency_us(0.5);
    let figure = |name: &str, value, goal| GoalRatio {
        name: name.to_owned(),
        value,
        better: BetterDirection::Lower,
        goal,
    };
    comparison.add_figure(figure("CPU µs per mint, p50", us(&mints.tally), GOAL_US));
    Ok(())
}

/// Mints a session for each worker, with a thread per core. The time ends with the last one.
fn mint_concurrently(
    workers: &mut [Provision],
    caller: &CallIdentity,
) -> Result<drive::CallTimes, BenchError> {
    let begun = Instant::now();
    // At least 1: chunks of zero panic.
    let share = workers.len().div_ceil(crate::peers::count_cores()).max(1);
    let threads: Vec<Result<drive::CallTimes, BenchError>> = thread::scope(|scope| {
        let start = |some: &'_ mut [Provision]| {
            let mut took = drive::CallTimes::default();
            for worker in some {
                time_cpu(&mut took, || mint_session(worker, caller, CALLER_ADDR))?;
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
    let mut all = drive::CallTimes::default();
    for took in threads {
        let took = took?;
        all.tally.merge(&took.tally);
        all.caller += took.caller;
    }
    all.time = begun.elapsed();
    Ok(all)
}

/// Mints on a separate thread for new workers while `calls` runs. Returns the result of `calls`,
/// and the number of mints.
pub(super) async fn mint_during<T>(what: impl Future<Output = T>) -> Result<(T, u64), BenchError> {
    let site = BenchAuthority::new()?;
    let gateway = site.gateway_identity()?;
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let stop_requested = std::sync::Arc::clone(&stop);
    let minting = thread::spawn(move || -> Result<u64, BenchError> {
        for number in 0.. {
            // Relaxed: pairs with the store below; the join publishes the result.
            if stop_requested.load(Ordering::Relaxed) {
                return Ok(number);
            }
            mint_session(&mut site.worker_provision(number)?, &gateway, CALLER_ADDR)?;
        }
        Ok(0)
    });
    let done = what.await;
    stop.store(true, Ordering::Relaxed);
    Ok((done, minting.join().expect("minting does not panic")?))
}

/// Records the CPU time of `work` as its latency: it does not wait.
fn time_cpu<T>(
    took: &mut drive::CallTimes,
    work: impl FnOnce() -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let (before, begun) = (drive::thread_cpu(), Instant::now());
    let done = work()?;
    let spent: Duration = drive::thread_cpu() - before;
    took.tally.record_outcome(Ok(spent));
    took.caller += spent;
    took.time += begun.elapsed();
    Ok(done)
}
