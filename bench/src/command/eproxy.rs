//! `eproxy`: from a gateway to an instance and back, by the ways to put a network between the two.
//!
//! CPU time is that of both processes together, including what the kernel does for their packets in their name. [`through`] asks
//! the same of a whole `nearpath up`.

mod through;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, ROUNDS, Row, Sample};
use crate::cpu;
use crate::load::closed::{self, Reuse};
use crate::load::{Template, Window};
use crate::peer::hop::{Hop, Server, Way, pin};
use crate::tally::Tally;

const WAYS: [(&str, Way); 4] = [
    ("in the switch", Way::Switch),
    ("routed", Way::Routed),
    ("routed, nft", Way::Filtered),
    ("forwarded", Way::Forwarded),
];
const PORT: u16 = 9000;

/// What goes to and fro.
#[derive(Clone, Copy)]
enum Talk {
    /// So many bytes and back, one after another, from a thread that blocks to a thread that blocks.
    Bytes(usize),
    /// HTTP requests over so many connections.
    Http(usize),
}

/// Name, and the processors of the gateway and of the instance.
const CASES: [(&str, Talk, [&[usize]; 2]); 5] = [
    ("ping-pong, one core", Talk::Bytes(32), [&[0], &[0]]),
    ("ping-pong, two cores", Talk::Bytes(32), [&[0], &[1]]),
    ("64 KB, one core", Talk::Bytes(65536), [&[0], &[0]]),
    ("http, one core, 1", Talk::Http(1), [&[0], &[0]]),
    ("http, two cores, 32", Talk::Http(32), [&[0], &[1]]),
];

/// Options of `eproxy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "1", value_parser = seconds)]
    duration: Duration,

    /// How long it runs before counting, in seconds
    #[arg(long, default_value = "0.2", value_parser = seconds)]
    warm_up: Duration,

    /// Only cases whose name holds this
    #[arg(long, default_value = "")]
    case: String,
}

impl Args {
    fn wants(&self, case: &str) -> bool {
        case.contains(&self.case)
    }
}

/// Exit code 1 when a goal is missed.
pub(crate) fn run(args: &Args) -> Outcome {
    let mut comparison = Comparison::new("eproxy", args.rounds);
    let hops: Vec<(&str, Hop)> =
        WAYS.into_iter().filter_map(|(name, way)| build(name, way)).collect::<Result<_, _>>()?;
    let names: Vec<&str> = hops.iter().map(|(name, _)| *name).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let there = CASES.into_iter().filter(|(_, _, cores)| cores[1][0] < crate::peer::cores());
    for (case, talk, cores) in there.filter(|(case, ..)| args.wants(case)) {
        let one = async |variant: usize| measure(&hops[variant].1, talk, cores, args);
        runtime.block_on(comparison.case::<io::Error>(case, &names, one))?;
        eprintln!("measured: {case}");
    }
    goals(&mut comparison, args);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(through::compare(&mut comparison, args))?;
    Ok(if comparison.finish()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A machine without nft, or a kernel without its tables, does without that variant.
fn build(name: &'static str, way: Way) -> Option<io::Result<(&'static str, Hop)>> {
    match Hop::build(way) {
        Err(why) if way == Way::Filtered => {
            eprintln!("left out: {name}: {why}");
            None
        }
        built => Some(built.map(|hop| (name, hop))),
    }
}

fn measure(hop: &Hop, talk: Talk, [front, back]: [&[usize]; 2], args: &Args) -> io::Result<Sample> {
    let subcommand = if matches!(talk, Talk::Bytes(_)) { "echo" } else { "handler" };
    let server = hop.serve(subcommand, PORT, back)?;
    nearpath_kernel::namespace::within(hop.front(), || {
        pin(front)?;
        let window = Window::after(args.warm_up, args.duration);
        let (tally, cpu) = match talk {
            Talk::Bytes(bytes) => ping_pong(&server, bytes, window)?,
            Talk::Http(callers) => http(&server, callers, window)?,
        };
        Ok(Sample::of(&tally, window.length(), cpu))
    })
}

fn ping_pong(server: &Server, bytes: usize, window: Window) -> io::Result<(Tally, Duration)> {
    let (mut stream, mut buffer, mut tally) = (connect(server.addr)?, vec![7; bytes], Tally::default());
    let mut there_and_back = || -> io::Result<(Instant, Instant)> {
        let start = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        Ok((start, Instant::now()))
    };
    while there_and_back()?.1 < window.from {}
    let before = cpu::alone(&both(server));
    loop {
        let (start, end) = there_and_back()?;
        if end >= window.until {
            return Ok((tally, cpu::alone(&both(server)).saturating_sub(before)));
        }
        tally.add(Ok(end - start));
    }
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

fn http(server: &Server, callers: usize, window: Window) -> io::Result<(Tally, Duration)> {
    let template = Template::get(server.addr, "/").map_err(io::Error::other)?;
    let clock = async {
        sleep_until(window.from).await;
        let before = cpu::alone(&both(server));
        sleep_until(window.until).await;
        cpu::alone(&both(server)).saturating_sub(before)
    };
    let load = closed::run(&template, callers, Reuse::KeepAlive, window);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async { tokio::join!(load, clock) }))
}

/// This process is the gateway; it does nothing else meanwhile.
fn both(server: &Server) -> [u32; 2] {
    [std::process::id(), server.pid()]
}

/// The published claim, forwarded against routed; and that the default has no need of it. On one core alone: what goes from
/// core to core is mostly the wake-up, which is the same for all.
fn goals(comparison: &mut Comparison, args: &Args) {
    let goal = |value: fn(&Row) -> f64| Goal { value, better: Better::Lower, goal: 1.0 };
    let judged = CASES.iter().filter(|(_, talk, [front, back])| matches!(talk, Talk::Bytes(_)) && front == back);
    for (case, ..) in judged.filter(|(case, ..)| args.wants(case)) {
        for (over, under) in [("forwarded", "routed"), ("in the switch", "forwarded")] {
            comparison.ratio(&format!("p50, {case}, {over}/{under}"), case, over, under, goal(|row| row.p50_us));
            let cpu = goal(|row| row.cpu_us_per_request);
            comparison.ratio(&format!("CPU, {case}, {over}/{under}"), case, over, under, cpu);
        }
    }
}

/// Whether the option costs what a hop costs, and no more: a request has several packets and much else.
fn http_goals(comparison: &mut Comparison, args: &Args) {
    for (case, _) in through::CASES.into_iter().filter(|(case, _)| args.wants(case)) {
        let [(under, _), (over, _)] = through::WAYS;
        let goal = |value: fn(&Row) -> f64| Goal { value, better: Better::Lower, goal: 1.1 };
        comparison.ratio(&format!("p50, {case}, forwarded/default"), case, over, under, goal(|row| row.p50_us));
        let cpu = goal(|row| row.cpu_us_per_request);
        comparison.ratio(&format!("CPU, {case}, forwarded/default"), case, over, under, cpu);
    }
}
