//! `mint`: the cost of many concurrent worker starts, and of many idle connections.
//!
//! Calls run over one connection during minting: by no thread, by one low-priority thread like a
//! node's issuer, and by two normal threads as control. CPU time is that of the calls alone, both
//! sides. The second part opens connections and measures their memory on each side. Everything runs
//! on loopback without root.

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::task::LocalSet;

use super::{BenchOutcome, parse_seconds};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, ROUNDS, RatioGoal};
use crate::cpu;
use crate::remote::caller::{CalleeAddress, RemoteCaller, SizedCall};
use crate::remote::drive::{self, CallPlan};
use crate::remote::identities::{BenchAuthority, CallIdentity, mint_session};
use crate::remote::sink::SinkProcess;
use crate::remote::{BenchError, RemoteTransport};

const CALLER_ADDR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Niceness of the issuer thread.
const ISSUER_NICENESS: i32 = 10;
const VARIANTS: [&str; 3] = ["no minting", "issuer thread", "normal threads"];
/// Goal for the CPU time of a key, its certificate and a session, in microseconds.
const GOAL_US: f64 = 1000.0;
/// Goal for the 99th percentile of calls during minting by the issuer thread, as a ratio.
const GOAL_P99: f64 = 1.5;
/// Goal for the memory of an idle connection, on each side, in KiB.
const GOAL_KIB: f64 = 96.0;

/// Options of `mint`.
#[derive(clap::Args)]
pub(crate) struct MintArgs {
    /// Set the rounds of each variant
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the length of a measurement in seconds
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    duration: Duration,

    /// Set the number of connections in the memory measurement
    #[arg(long, default_value_t = 1000)]
    connections: usize,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: MintArgs) -> BenchOutcome {
    LocalSet::new().run_until(measure_mints(args)).await
}

async fn measure_mints(args: MintArgs) -> BenchOutcome {
    let site = Arc::new(BenchAuthority::new()?);
    let gateway = site.gateway_identity()?;
    let provision = site.worker_provision(0)?;
    // One more than the idle ones, for the measured calls' connection.
    let sink = SinkProcess::start(&provision, args.connections + 1)?;
    let name = provision.credentials.name.clone();
    let callee = CalleeAddress {
        worker: sink.addr,
        server: sink.addr,
        name,
    };
    let caller = RemoteCaller::new(gateway.clone())?;
    let mut comparison = BenchComparison::new("mint", args.rounds);
    let (plan, worker) = (
        CallPlan {
            duration: args.duration,
            least: 100,
        },
        || cpu::processes_cpu(&[sink.pid()]),
    );
    let mints = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 3];
    for at_a_time in [1, 32] {
        let one = async |variant: usize| {
            let minting = MintThreads::start_threads(variant, &site, &gateway);
            let sized_call = SizedCall::for_post(100);
            let took = drive::call_keep_alive(
                &caller,
                (RemoteTransport::QuicReady, &callee),
                (&sized_call, at_a_time),
                plan,
                worker,
            )
            .await;
            let (done, cpu) = minting.stop_threads();
            // Relaxed: a counter that only this thread touches; atomic because the closure is
            // shared.
            mints[variant].0.fetch_add(done, Ordering::Relaxed);
            mints[variant]
                .1
                .fetch_add(cpu.as_micros() as u64, Ordering::Relaxed);
            Ok::<_, BenchError>(took.to_sample())
        };
        comparison
            .measure_loads(&case_name(at_a_time), &VARIANTS, one)
            .await?;
    }
    add_figures(
        &mut comparison,
        &mints,
        // Two cases, with 1 and with 32 calls at a time, minted alike.
        2.0 * args.rounds as f64 * args.duration.as_secs_f64(),
    );
    measure_memory(&mut comparison, &args, &caller, &callee, sink.pid()).await?;
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn case_name(at_a_time: usize) -> String {
    format!("calls during minting, {at_a_time} concurrent")
}

fn add_figures(
    comparison: &mut BenchComparison,
    mints: &[(AtomicU64, AtomicU64); 3],
    seconds: f64,
) {
    for at_a_time in [1, 32] {
        let goal = RatioGoal {
            value: |row| row.p99_us,
            better: BetterDirection::Lower,
            goal: GOAL_P99,
        };
        let name = format!(
            "p99 during minting by the issuer thread / without minting, {at_a_time} concurrent"
        );
        comparison.add_ratio(&name, &case_name(at_a_time), VARIANTS[1], VARIANTS[0], goal);
    }
    for (variant, (done, us)) in VARIANTS.iter().zip(mints).skip(1) {
        println!(
            "{variant}: {:.0} mints per second",
            done.load(Ordering::Relaxed) as f64 / seconds
        );
        let value = us.load(Ordering::Relaxed) as f64 / done.load(Ordering::Relaxed).max(1) as f64;
        let name = format!("CPU µs per key, certificate and session, {variant}");
        comparison.add_figure(GoalRatio {
            name,
            value,
            better: BetterDirection::Lower,
            goal: GOAL_US,
        });
    }
}

/// Background threads that mint for one new worker after another until they are stopped.
struct MintThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(u64, Duration)>>,
}

impl MintThreads {
    fn start_threads(variant: usize, site: &Arc<BenchAuthority>, gateway: &CallIdentity) -> Self {
        // The order of VARIANTS.
        let (threads, nice) = [(0, 0), (1, ISSUER_NICENESS), (2, 0)][variant];
        let stop = Arc::new(AtomicBool::new(false));
        let start = |thread: u64| {
            let (site, gateway, stop) = (Arc::clone(site), gateway.clone(), Arc::clone(&stop));
            let one = move |number| {
                site.worker_provision(number)
                    .and_then(|mut worker| mint_session(&mut worker, &gateway, CALLER_ADDR))
            };
            // Disjoint numbers for each thread: a worker's number is in its certificate.
            let numbers = (1..).map(move |n| n * threads + thread);
            thread::spawn(move || mint_until(&stop, nice, numbers.map(one)))
        };
        let threads = (0..threads).map(start).collect();
        Self { stop, threads }
    }

    /// Stops the threads. Returns the number of mints and their CPU time.
    fn stop_threads(self) -> (u64, Duration) {
        // Relaxed: the join below orders the results; the flag only has to arrive.
        self.stop.store(true, Ordering::Relaxed);
        let ended = self
            .threads
            .into_iter()
            .map(|thread| thread.join().expect("minting does not panic"));
        ended.fold((0, Duration::ZERO), |(done, cpu), (more, took)| {
            (done + more, cpu + took)
        })
    }
}

/// Runs `work` until `stop` is set. Returns the number of successes and the CPU time.
fn mint_until(
    stop: &AtomicBool,
    nice: i32,
    work: impl Iterator<Item = Result<(), BenchError>>,
) -> (u64, Duration) {
    let _ = rustix::process::nice(nice); // of this thread alone; lowering a priority needs no privilege
    let done = work
        // Relaxed pairs with the store in `stop_threads`: no data is published by the flag.
        .take_while(|_| !stop.load(Ordering::Relaxed))
        .filter(Result::is_ok)
        .count() as u64;
    // Of the whole thread, since it has done nothing else.
    (done, drive::thread_cpu())
}

/// Opens connections, makes one call on each, and measures the memory growth of both processes.
async fn measure_memory(
    comparison: &mut BenchComparison,
    args: &MintArgs,
    caller: &RemoteCaller,
    callee: &CalleeAddress,
    worker: u32,
) -> Result<(), BenchError> {
    let (own, mut kept) = (std::process::id(), Vec::new());
    // After the first measurement: allocators and tables are warm by now.
    let before = [resident_kib(own)?, resident_kib(worker)?];
    for _ in 0..args.connections {
        let mut connection = caller
            .open_connection(RemoteTransport::QuicReady, callee)
            .await
            .map_err(|failure| failure.to_string())?;
        connection
            .make_call(&SizedCall::for_post(100))
            .await
            .map_err(|failure| failure.to_string())?;
        // Kept until the end, or it would close.
        kept.push(connection);
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // tickets, probes and acknowledgements have come by then
    let after = [resident_kib(own)?, resident_kib(worker)?];
    for (side, (before, after)) in ["caller", "worker"]
        .into_iter()
        .zip(before.into_iter().zip(after))
    {
        let value = (after - before) / args.connections as f64;
        let name = format!("KiB (RSS) per idle connection, {side}");
        comparison.add_figure(GoalRatio {
            name,
            value,
            better: BetterDirection::Lower,
            goal: GOAL_KIB,
        });
    }
    Ok(())
}

fn resident_kib(pid: u32) -> Result<f64, BenchError> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
