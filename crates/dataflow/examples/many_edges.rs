//! Cost of many edges for one worker: memory, descriptors and time, while every edge comes from a
//! process of its own.
//!
//! `cargo run --release -p nearpath-dataflow --example many_edges -- [EDGES] [both|tcp|udp|relay]
//! [DESCRIPTORS]`; build with `--examples` first, because the workers are `examples/edges.rs`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nearpath_ca::Authority;
use nearpath_dataflow::remote::{identity, worker_name};
use nearpath_dataflow::worker::{InputConfig, OutputConfig, WorkerAssignment};
use nearpath_p2p::ticket::JobName;
use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::p2p::rendezvous::{TestRendezvous, unix_seconds};
use serde_json::json;

const HOUR: Duration = Duration::from_secs(3600);

struct EdgeProcess {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl EdgeProcess {
    fn send_line(&mut self, what: &serde_json::Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    fn next_line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

fn main() {
    let edges: usize = std::env::args()
        .nth(1)
        .map_or(300, |text| text.parse().unwrap());
    let over = std::env::args().nth(2).unwrap_or_else(|| "both".to_owned());
    let (rendezvous, job): (_, JobName) = (
        TestRendezvous::start(RendezvousLimits::default()),
        "many".parse().unwrap(),
    );
    let authority = Authority::new("many", SystemTime::now(), HOUR).unwrap();
    let producers: Vec<String> = (0..edges).map(|number| format!("map.{number}")).collect();
    let mut workers: Vec<EdgeProcess> = producers
        .iter()
        .map(|name| spawn_worker(&rendezvous, &job, &authority, name))
        .collect();
    let mut consumer = spawn_worker(&rendezvous, &job, &authority, "reduce.0");
    let pid = consumer.child.id();
    let (before, cpu_before) = (process_status(pid, "VmRSS"), cpu_seconds(pid));
    let (peak, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let elapsed = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(open_descriptors(pid), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        begin_attempt(&mut consumer, "reduce.0", &producers, &[], &over);
        for (worker, name) in workers.iter_mut().zip(&producers) {
            begin_attempt(worker, name, &[], &["reduce.0".to_owned()], &over);
        }
        for worker in &mut workers {
            let line = worker.next_line();
            assert_eq!(line, "half");
        }
        done.store(true, Ordering::Relaxed);
        begun.elapsed()
    });
    thread::sleep(Duration::from_secs(1));
    let after = process_status(pid, "VmRSS");
    println!(
        "{edges} edges over {over}: all there after {:.2} s, {:.2} s of the worker's processor; memory {} MB, an edge {:.0} kB, at most {} MB; \
         descriptors {} now, {} at most; threads {}",
        elapsed.as_secs_f64(),
        cpu_seconds(pid) - cpu_before,
        after / 1000,
        after.saturating_sub(before) as f64 / edges as f64,
        process_status(pid, "VmHWM") / 1000,
        open_descriptors(pid),
        peak.into_inner(),
        process_status(pid, "Threads"),
    );
    workers
        .iter_mut()
        .for_each(|worker| worker.send_line(&"go".into()));
    for worker in workers.iter_mut().chain([&mut consumer]) {
        let line = worker.next_line();
        assert!(line.contains(r#""failure":null"#), "{line}");
        worker.child.kill().unwrap();
        worker.child.wait().unwrap();
    }
}

fn spawn_worker(
    rendezvous: &TestRendezvous,
    job: &JobName,
    authority: &Authority,
    name: &str,
) -> EdgeProcess {
    let program = std::env::current_exe().unwrap().with_file_name("edges");
    // The default limit of a process.
    let max_descriptors = std::env::args().nth(3).unwrap_or_else(|| "1024".to_owned());
    let mut limited = Command::new("sh");
    limited
        .args(["-c", r#"ulimit -n "$1" && exec "$0""#])
        .arg(program)
        .arg(max_descriptors);
    let mut child = limited
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut worker = EdgeProcess { child, lines };
    let ticket = rendezvous.issue_ticket(
        job.as_str(),
        worker_name::to_spiffe_id(job, name).unwrap(),
        false,
        unix_seconds() + 3600,
    );
    let identity = identity::issue_identity(authority, job, name, HOUR).unwrap();
    worker.send_line(&json!({"rendezvous": format!("ws://{}", rendezvous.rendezvous.addr), "ticket": ticket, "identity": identity}));
    assert_eq!(worker.next_line(), "there");
    worker
}

fn begin_attempt(worker: &mut EdgeProcess, name: &str, from: &[String], to: &[String], over: &str) {
    let assignment = WorkerAssignment {
        name: name.to_owned(),
        attempt: 1,
        inputs: from
            .iter()
            .map(|from| InputConfig {
                from: from.clone(),
                processed: Some(0),
                pending: false,
            })
            .collect(),
        outputs: to
            .iter()
            .map(|to| OutputConfig {
                to: to.clone(),
                sent: 0,
                spill: false,
                pending: false,
            })
            .collect(),
        window: 64 << 10,
        checkpoint: 0,
        spill: None,
        connect_timeout: 60.0,
    };
    let (over, path): (&[&str], _) = match over {
        "relay" => (&[], "relay"),
        "both" => (&["tcp", "udp"], "punch"),
        other => (&[other], "punch"),
    };
    worker.send_line(&json!({"orders": assignment, "batches": 4, "size": 16_000, "over": over, "path": path, "pause": true}));
}

fn process_status(pid: u32, field: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .unwrap();
    line.trim_start_matches(':')
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn open_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// CPU time of a process in seconds, user and system.
fn cpu_seconds(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    ticks as f64 / 100.0
}
