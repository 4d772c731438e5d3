//! What many edges cost one worker: its memory, descriptors and time, while each of so many processes streams to it.
//!
//! `cargo run --release -p nearpath-dataflow --example many_edges -- [EDGES] [both|tcp|udp|relay] [DESCRIPTORS]`; builds with `--examples`, for the workers
//! are `examples/edges.rs`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nearpath_ca::Authority;
use nearpath_dataflow::remote::{identity, worker_name};
use nearpath_dataflow::worker::{Input, Orders, Output};
use nearpath_p2p::ticket::Job;
use nearpath_rendezvous::Limits;
use nearpath_testkit::p2p::rendezvous::{House, now};
use serde_json::json;

const HOUR: Duration = Duration::from_secs(3600);

struct Hand {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Hand {
    fn say(&mut self, what: &serde_json::Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    fn next(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

fn main() {
    let edges: usize = std::env::args().nth(1).map_or(300, |text| text.parse().unwrap());
    let over = std::env::args().nth(2).unwrap_or_else(|| "both".to_owned());
    let (house, job): (_, Job) = (House::start(Limits::default()), "many".parse().unwrap());
    let authority = Authority::new("many", SystemTime::now(), HOUR).unwrap();
    let producers: Vec<String> = (0..edges).map(|number| format!("map.{number}")).collect();
    let mut hands: Vec<Hand> = producers.iter().map(|name| hire(&house, &job, &authority, name)).collect();
    let mut consumer = hire(&house, &job, &authority, "reduce.0");
    let pid = consumer.child.id();
    let (before, used) = (status(pid, "VmRSS"), processor(pid));
    let (peak, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let took = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(descriptors(pid), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        begin(&mut consumer, "reduce.0", &producers, &[], &over);
        for (hand, name) in hands.iter_mut().zip(&producers) {
            begin(hand, name, &[], &["reduce.0".to_owned()], &over);
        }
        for hand in &mut hands {
            let said = hand.next();
            assert_eq!(said, "half");
        }
        done.store(true, Ordering::Relaxed);
        begun.elapsed()
    });
    thread::sleep(Duration::from_secs(1));
    let after = status(pid, "VmRSS");
    println!(
        "{edges} edges over {over}: all there after {:.2} s, {:.2} s of the worker's processor; memory {} MB, an edge {:.0} kB, at most {} MB; \
         descriptors {} now, {} at most; threads {}",
        took.as_secs_f64(),
        processor(pid) - used,
        after / 1000,
        after.saturating_sub(before) as f64 / edges as f64,
        status(pid, "VmHWM") / 1000,
        descriptors(pid),
        peak.into_inner(),
        status(pid, "Threads"),
    );
    hands.iter_mut().for_each(|hand| hand.say(&"go".into()));
    for hand in hands.iter_mut().chain([&mut consumer]) {
        let said = hand.next();
        assert!(said.contains(r#""failure":null"#), "{said}");
        hand.child.kill().unwrap();
        hand.child.wait().unwrap();
    }
}

fn hire(house: &House, job: &Job, authority: &Authority, name: &str) -> Hand {
    let program = std::env::current_exe().unwrap().with_file_name("edges");
    let most = std::env::args().nth(3).unwrap_or_else(|| "1024".to_owned()); // what processes may have by default
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"ulimit -n "$1" && exec "$0""#]).arg(program).arg(most);
    let mut child = limited.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut hand = Hand { child, lines };
    let ticket = house.admit(job.as_str(), worker_name::identity(job, name).unwrap(), false, now() + 3600);
    let identity = identity::issue(authority, job, name, HOUR).unwrap();
    hand.say(&json!({"rendezvous": format!("ws://{}", house.rendezvous.addr), "ticket": ticket, "identity": identity}));
    assert_eq!(hand.next(), "there");
    hand
}

fn begin(hand: &mut Hand, name: &str, from: &[String], to: &[String], over: &str) {
    let orders = Orders {
        name: name.to_owned(),
        attempt: 1,
        inputs: from.iter().map(|from| Input { from: from.clone(), processed: Some(0), later: false }).collect(),
        outputs: to.iter().map(|to| Output { to: to.clone(), sent: 0, spill: false, later: false }).collect(),
        window: 64 << 10,
        checkpoint: 0,
        spill: None,
        patience: 60.0,
    };
    let (over, path): (&[&str], _) = match over {
        "relay" => (&[], "relay"),
        "both" => (&["tcp", "udp"], "punch"),
        other => (&[other], "punch"),
    };
    hand.say(&json!({"orders": orders, "batches": 4, "size": 16_000, "over": over, "path": path, "pause": true}));
}

fn status(pid: u32, field: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Seconds of processor, user and system.
fn processor(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}
