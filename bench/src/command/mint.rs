//! `mint`: what many workers cost that start at once, and many connections that nobody calls on.
//!
//! Calls go on over one connection while sessions are minted: by nobody, by the minter (two threads of the lowest priority, as a node
//! has it) and by two ordinary threads, which is the control. CPU time is that of the calls alone, both sides. Then connections
//! are opened, and the memory that they hold on each side is looked at. All is on loopback; it needs no root.

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nearpath_wire::early::Minter;
use tokio::task::LocalSet;

use super::{Outcome, seconds};
use crate::apart::caller::{Ask, Callee, Caller};
use crate::apart::drive::{self, Plan};
use crate::apart::sink::Sink;
use crate::apart::site::{Identity, Site, mint};
use crate::apart::{Error, Way};
use crate::compare::{Better, Comparison, Goal, ROUNDS, Ratio};
use crate::cpu;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const VARIANTS: [&str; 3] = ["nothing", "the minter", "ordinary threads"];
/// CPU time of a key, its certificate and a session, in microseconds.
const GOAL_US: f64 = 1000.0;
/// How much the minter may add to the 99th percentile of calls.
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
    let callee = Callee { worker: sink.addr, server: sink.addr, name };
    let caller = Caller::new(gateway.clone())?;
    let mut comparison = Comparison::new("mint", args.rounds);
    let (plan, worker) = (Plan { duration: args.duration, least: 100 }, || cpu::alone(&[sink.pid()]));
    let mints = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 3];
    for at_a_time in [1, 32] {
        let one = async |variant: usize| {
            let minting = Minting::begin(variant, &site, &gateway)?;
            let ask = Ask::post(100);
            let took = drive::kept(&caller, (Way::QuicReady, &callee), (&ask, at_a_time), plan, worker).await;
            let (done, cpu) = minting.end();
            mints[variant].0.fetch_add(done, Ordering::Relaxed);
            mints[variant].1.fetch_add(cpu.as_micros() as u64, Ordering::Relaxed);
            Ok::<_, Error>(took.measured())
        };
        comparison.loads(&case(at_a_time), &VARIANTS, one).await?;
    }
    figures(&mut comparison, &mints, 2.0 * args.rounds as f64 * args.duration.as_secs_f64());
    memory(&mut comparison, &args, &caller, &callee, sink.pid()).await?;
    Ok(if comparison.finish()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn case(at_a_time: usize) -> String {
    format!("calls beside minting, {at_a_time} at a time")
}

fn figures(comparison: &mut Comparison, mints: &[(AtomicU64, AtomicU64); 3], seconds: f64) {
    for at_a_time in [1, 32] {
        let goal = Goal { value: |row| row.p99_us, better: Better::Lower, goal: GOAL_P99 };
        let name = format!("p99 beside the minter, {at_a_time} at a time, by that beside nothing");
        comparison.ratio(&name, &case(at_a_time), VARIANTS[1], VARIANTS[0], goal);
    }
    for (variant, (done, us)) in VARIANTS.iter().zip(mints).skip(1) {
        println!("{variant}: {:.0} mints a second", done.load(Ordering::Relaxed) as f64 / seconds);
        if us.load(Ordering::Relaxed) > 0 {
            let value = us.load(Ordering::Relaxed) as f64 / done.load(Ordering::Relaxed).max(1) as f64;
            let name = "CPU µs of a key, its certificate and a session".to_owned();
            comparison.figure(Ratio { name, value, better: Better::Lower, goal: GOAL_US });
        }
    }
}

/// What goes on beside.
enum Minting {
    Nothing,
    Minter(Minter),
    Threads(Arc<AtomicBool>, Vec<JoinHandle<u64>>),
}

impl Minting {
    fn begin(variant: usize, site: &Arc<Site>, gateway: &Identity) -> Result<Self, Error> {
        let one = {
            let (site, gateway) = (Arc::clone(site), gateway.clone());
            move |number| site.worker(number).and_then(|mut provision| mint(&mut provision, &gateway, HERE))
        };
        match variant {
            1 => {
                let minter = Minter::start(Minter::THREADS, Minter::ROOM)?;
                for number in 0..Minter::ROOM as u64 {
                    let one = one.clone();
                    minter.order(move || one(number + 1))?.keep();
                }
                Ok(Self::Minter(minter))
            }
            2 => {
                let stop = Arc::new(AtomicBool::new(false));
                let threads = (0..Minter::THREADS as u64).map(|thread| {
                    let (one, stop) = (one.clone(), Arc::clone(&stop));
                    let until = move |_: &u64| !stop.load(Ordering::Relaxed);
                    thread::spawn(move || {
                        (1..).take_while(until).filter(|n| one(n * 2 + thread).is_ok()).count() as u64
                    })
                });
                let threads = threads.collect();
                Ok(Self::Threads(stop, threads))
            }
            _ => Ok(Self::Nothing),
        }
    }

    /// How many there were, and what they took, if that is known.
    fn end(self) -> (u64, Duration) {
        match self {
            Self::Nothing => (0, Duration::ZERO),
            Self::Minter(minter) => {
                let numbers = minter.numbers();
                (numbers.done, numbers.cpu)
            }
            Self::Threads(stop, threads) => {
                stop.store(true, Ordering::Relaxed);
                (threads.into_iter().filter_map(|thread| thread.join().ok()).sum(), Duration::ZERO)
            }
        }
    }
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
        let mut connection = caller.open(Way::QuicReady, callee).await.map_err(|failure| failure.to_string())?;
        connection.ask(&Ask::post(100)).await.map_err(|failure| failure.to_string())?;
        kept.push(connection);
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // tickets, probes and acknowledgements have come by then
    let after = [resident_kib(own)?, resident_kib(worker)?];
    for (side, (before, after)) in ["caller", "worker"].into_iter().zip(before.into_iter().zip(after)) {
        let value = (after - before) / args.connections as f64;
        let name = format!("KiB (RSS) of an idle connection, {side}");
        comparison.figure(Ratio { name, value, better: Better::Lower, goal: GOAL_KIB });
    }
    Ok(())
}

fn resident_kib(pid: u32) -> Result<f64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
