//! Workers: `examples/edges.rs`, each a process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_dataflow::remote::{identity, worker_name};
use nearpath_dataflow::worker::{Input, Orders, Output};
use nearpath_p2p::ticket::Job;
use nearpath_testkit::lab::Node;
use nearpath_testkit::p2p::rendezvous::{House, now};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);
/// Nobody hangs.
const DEADLINE: Duration = Duration::from_secs(90);

/// A job, as who started it sees it.
pub(crate) struct Crew {
    pub(crate) job: Job,
    pub(crate) authority: Authority,
}

/// What is sent on each edge of an attempt.
pub(crate) struct Load {
    pub(crate) batches: usize,
    pub(crate) size: usize,
    pub(crate) over: &'static [&'static str],
    /// Before the first batch all edges take it.
    pub(crate) path: Option<&'static str>,
    /// In the middle.
    pub(crate) pause: bool,
    pub(crate) patience: f64,
}

impl Default for Load {
    fn default() -> Self {
        Self { batches: 200, size: 10_000, over: &["tcp", "udp"], path: None, pause: false, patience: 60.0 }
    }
}

/// A worker's process.
pub(crate) struct Hand {
    pub(crate) name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// What a worker says after an attempt.
#[derive(Debug)]
pub(crate) struct Went {
    pub(crate) failure: Option<String>,
    pub(crate) stats: Value,
}

impl Crew {
    pub(crate) fn new() -> Self {
        let job: Job = "sort".parse().unwrap();
        let authority = Authority::new(job.as_str(), SystemTime::now(), HOUR).unwrap();
        Self { job, authority }
    }

    /// A worker that has come to the rendezvous, from this machine or another one.
    pub(crate) fn hire(&self, house: &House, node: Option<&Node>, name: &str) -> Hand {
        let mut command = Command::new(nearpath_testkit::program("examples/edges"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = if let Some(node) = node { node.spawn(&mut command) } else { command.spawn() };
        let mut hand = Hand::new(name, child.unwrap());
        let ticket =
            house.admit(self.job.as_str(), worker_name::identity(&self.job, name).unwrap(), false, now() + 3600);
        let identity = identity::issue(&self.authority, &self.job, name, HOUR).unwrap();
        let place = format!("ws://{}", house.rendezvous.addr);
        hand.say(&json!({"rendezvous": place, "ticket": ticket, "identity": identity}));
        assert_eq!(hand.next(), "there");
        hand
    }
}

/// Each of those sends to each of these. They are to begin an attempt.
pub(crate) fn begin(from: &mut [Hand], to: &mut [Hand], attempt: u32, load: &Load) {
    let (producers, consumers) = (names(from), names(to));
    for hand in from {
        hand.begin(attempt, &[], &consumers, load);
    }
    for hand in to {
        hand.begin(attempt, &producers, &[], load);
    }
}

pub(crate) fn names(hands: &[Hand]) -> Vec<String> {
    hands.iter().map(|hand| hand.name.clone()).collect()
}

impl Hand {
    fn new(name: &str, mut child: Child) -> Self {
        let (tell, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { name: name.to_owned(), stdin: child.stdin.take().unwrap(), child, lines }
    }

    pub(crate) fn say(&mut self, what: &Value) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    pub(crate) fn next(&self) -> String {
        self.lines.recv_timeout(DEADLINE).unwrap_or_else(|error| panic!("{} is silent: {error}", self.name))
    }

    pub(crate) fn begin(&mut self, attempt: u32, from: &[String], to: &[String], load: &Load) {
        let orders = Orders {
            name: self.name.clone(),
            attempt,
            inputs: from.iter().map(|from| Input { from: from.clone(), processed: Some(0), later: false }).collect(),
            outputs: to.iter().map(|to| Output { to: to.clone(), sent: 0, spill: false, later: false }).collect(),
            window: 256 << 10,
            checkpoint: 0,
            spill: None,
            patience: load.patience,
        };
        let Load { batches, size, over, path, pause, .. } = load;
        self.say(
            &json!({"orders": orders, "batches": batches, "size": size, "over": over, "path": path, "pause": pause}),
        );
    }

    /// After all that it does in an attempt.
    pub(crate) fn went(&self) -> Went {
        let mut said: Value = serde_json::from_str(&self.next()).unwrap();
        Went { failure: said["failure"].as_str().map(str::to_owned), stats: said["stats"].take() }
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Went {
    /// By which paths its edges went, and how many bytes over the relay in all. Panics when something went wrong.
    pub(crate) fn well(&self) -> (Vec<String>, u64) {
        assert_eq!(self.failure, None, "{self:?}");
        let edges = ["inputs", "outputs"].iter().flat_map(|end| self.stats[end].as_array().unwrap());
        let (paths, relayed): (Vec<_>, Vec<_>) =
            edges.map(|edge| (edge["path"].as_str().unwrap().to_owned(), edge["relayed"].as_u64().unwrap())).unzip();
        (paths, relayed.iter().sum())
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.failure.as_ref().is_some_and(|why| why.contains("is gone"))
    }
}
