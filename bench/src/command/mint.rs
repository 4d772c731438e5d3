//! `mint`: what many workers cost that start at once, and many connections that nobody calls on.
//!
//! Calls go on over one connection while sessions are minted: by nobody, by one thread of low priority, as the issuer of a
//! node has it, and by two ordinary threads, which is the control. CPU time is that of the calls alone, both sides. Then connections
//! are opened, and the memory that they hold on each side is looked at. All is on loopback; it needs no root.

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::task::LocalSet;

use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, ROUNDS, Ratio};
use crate::cpu;
use crate::remote::caller::{Ask, Callee, Caller};
use crate::remote::drive::{self, Plan};
use crate::remote::sink::Sink;
use crate::remote::site::{Identity, Site, mint};
use crate::remote::{Error, Way};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// What the issuer's thread adds to its niceness.
const NICE: i32 = 10;
const VARIANTS: [&str; 3] = ["nothing", "the issuer's thread", "ordinary threads"];
/// CPU time of a key, its certificate and a session, in microseconds.
const GOAL_US: f64 = 1000.0;
/// How much the issuer's thread may add to the 99th percentile of calls.
const GOAL_P99: f64 = 1.5;
/// Memory of a connection that nobody calls on, on each side.
const GOAL_KIB: f64 = 96.0;

/// Options of `mint`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "1", value_parser = seconds)]
    duration: Duration,

    /// Connections whose memory is looked at
    #[arg(long, default_value_t = 1000)]
    connections: usize,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    LocalSet::new().run_until(measure(args)).await
}

async fn measure(args: Args) -> Outcome {
    let site = Arc::new(Site::new()?);
    let gateway = site.gateway()?;
    let provision = site.worker(0)?;
    let sink = Sink::start(&provision, args.connections + 1)?;
    let name = provision.credentials.name.clone();
    let callee = Callee {
        worker: sink.addr,
        server: sink.addr,
        name,
    };
    let caller = Caller::new(gateway.clone())?;
    let mut comparison = Comparison::new("mint", args.rounds);
    let (plan, worker) = (
        Plan {
            duration: args.duration,
            least: 100,
        },
        || cpu::alone(&[sink.pid()]),
    );
    let mints = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 3];
    for at_a_time in [1, 32] {
        let one = async |variant: usize| {
            let minting = Minting::begin(variant, &site, &gateway);
            let ask = Ask::post(100);
            let took = drive::kept(
                &caller,
                (Way::QuicReady, &callee),
                (&ask, at_a_time),
                plan,
                worker,
            )
            .await;
            let (done, cpu) = minting.end();
            mints[variant].0.fetch_add(done, Ordering::Relaxed);
            mints[variant]
                .1
                .fetch_add(cpu.as_micros() as u64, Ordering::Relaxed);
            Ok::<_, Error>(took.measured())
        };
        comparison.loads(&case(at_a_time), &VARIANTS, one).await?;
    }
    figures(
        &mut comparison,
        &mints,
        2.0 * args.rounds as f64 * args.duration.as_secs_f64(),
    );
    memory(&mut comparison, &args, &caller, &callee, sink.pid()).await?;
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn case(at_a_time: usize) -> String {
    format!("calls beside minting, {at_a_time} at a time")
}

fn figures(comparison: &mut Comparison, mints: &[(AtomicU64, AtomicU64); 3], seconds: f64) {
    for at_a_time in [1, 32] {
        let goal = Goal {
            value: |row| row.p99_us,
            better: Better::Lower,
            goal: GOAL_P99,
        };
        let name = format!(
            "p99 beside the issuer's thread, {at_a_time} at a time, by that beside nothing"
        );
        comparison.ratio(&name, &case(at_a_time), VARIANTS[1], VARIANTS[0], goal);
    }
    for (variant, (done, us)) in VARIANTS.iter().zip(mints).skip(1) {
        println!(
            "{variant}: {:.0} mints a second",
            done.load(Ordering::Relaxed) as f64 / seconds
        );
        let value = us.load(Ordering::Relaxed) as f64 / done.load(Ordering::Relaxed).max(1) as f64;
        let name = format!("CPU µs of a key, its certificate and a session, {variant}");
        comparison.figure(Ratio {
            name,
            value,
            better: Better::Lower,
            goal: GOAL_US,
        });
    }
}

/// What goes on beside: threads that mint for one new worker after another until they are told to stop.
struct Minting {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(u64, Duration)>>,
}

impl Minting {
    fn begin(variant: usize, site: &Arc<Site>, gateway: &Identity) -> Self {
        let (threads, nice) = [(0, 0), (1, NICE), (2, 0)][variant];
        let stop = Arc::new(AtomicBool::new(false));
        let start = |thread: u64| {
            let (site, gateway, stop) = (Arc::clone(site), gateway.clone(), Arc::clone(&stop));
            let one = move |number| {
                site.worker(number)
                    .and_then(|mut worker| mint(&mut worker, &gateway, HERE))
            };
            let numbers = (1..).map(move |n| n * threads + thread);
            thread::spawn(move || until(&stop, nice, numbers.map(one)))
        };
        let threads = (0..threads).map(start).collect();
        Self { stop, threads }
    }

    /// How many there were, and what they took of a processor.
    fn end(self) -> (u64, Duration) {
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

/// A thread's life: how much of `work` went well, and the CPU time of all of it.
fn until(
    stop: &AtomicBool,
    nice: i32,
    work: impl Iterator<Item = Result<(), Error>>,
) -> (u64, Duration) {
    let _ = rustix::process::nice(nice); // of this thread alone; to lower a priority nobody needs a right
    let done = work
        .take_while(|_| !stop.load(Ordering::Relaxed))
        .filter(Result::is_ok)
        .count() as u64;
    (done, drive::own())
}

/// Opens connections, makes one call on each, and looks at what both processes hold more than before.
async fn memory(
    comparison: &mut Comparison,
    args: &Args,
    caller: &Caller,
    callee: &Callee,
    worker: u32,
) -> Result<(), Error> {
    let (own, mut kept) = (std::process::id(), Vec::new());
    let before = [resident_kib(own)?, resident_kib(worker)?];
    for _ in 0..args.connections {
        let mut connection = caller
            .open(Way::QuicReady, callee)
            .await
            .map_err(|failure| failure.to_string())?;
        connection
            .ask(&Ask::post(100))
            .await
            .map_err(|failure| failure.to_string())?;
        kept.push(connection);
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // tickets, probes and acknowledgements have come by then
    let after = [resident_kib(own)?, resident_kib(worker)?];
    for (side, (before, after)) in ["caller", "worker"]
        .into_iter()
        .zip(before.into_iter().zip(after))
    {
        let value = (after - before) / args.connections as f64;
        let name = format!("KiB (RSS) of an idle connection, {side}");
        comparison.figure(Ratio {
            name,
            value,
            better: Better::Lower,
            goal: GOAL_KIB,
        });
    }
    Ok(())
}

fn resident_kib(pid: u32) -> Result<f64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
