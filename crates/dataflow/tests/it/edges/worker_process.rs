//! Worker processes: `examples/edges.rs`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_dataflow::remote::{identity, worker_name};
use nearpath_dataflow::worker::{InputConfig, OutputConfig, WorkerAssignment};
use nearpath_p2p::ticket::JobName;
use nearpath_testkit::lab::LabNode;
use nearpath_testkit::p2p::rendezvous::{TestRendezvous, unix_seconds};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);
/// A test fails instead of waiting longer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(90);

/// A job from the view of the process that started it.
pub(crate) struct TestJob {
    pub(crate) job: JobName,
    pub(crate) authority: Authority,
}

/// Load of each edge in an attempt.
pub(crate) struct EdgeLoad {
    pub(crate) batches: usize,
    pub(crate) size: usize,
    pub(crate) transports: &'static [&'static str],
    /// Path that all edges must use before the first batch.
    pub(crate) path: Option<&'static str>,
    /// Wait for a line after half of the batches.
    pub(crate) pause: bool,
    pub(crate) connect_timeout: f64,
}

impl Default for EdgeLoad {
    fn default() -> Self {
        Self {
            batches: 200,
            size: 10_000,
            transports: &["tcp", "udp"],
            path: None,
            pause: false,
            connect_timeout: 60.0,
        }
    }
}

/// A worker process.
pub(crate) struct WorkerProcess {
    pub(crate) name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// Report of a worker after an attempt.
#[derive(Debug)]
pub(crate) struct AttemptResult {
    pub(crate) failure: Option<String>,
    pub(crate) stats: Value,
}

impl TestJob {
    pub(crate) fn new() -> Self {
        let job: JobName = "sort".parse().unwrap();
        let authority = Authority::new(job.as_str(), SystemTime::now(), HOUR).unwrap();
        Self { job, authority }
    }

    /// Starts a worker, on this machine or another one, and waits until it has reached the
    /// rendezvous.
    pub(crate) fn spawn_worker(
        &self,
        rendezvous: &TestRendezvous,
        node: Option<&LabNode>,
        name: &str,
    ) -> WorkerProcess {
        let mut command = Command::new(nearpath_testkit::program("examples/edges"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = if let Some(node) = node {
            node.spawn(&mut command)
        } else {
            command.spawn()
        };
        let mut worker = WorkerProcess::new(name, child.unwrap());
        let ticket = rendezvous.issue_ticket(
            self.job.as_str(),
            worker_name::to_spiffe_id(&self.job, name).unwrap(),
            false,
            unix_seconds() + 3600,
        );
        let identity = identity::issue_identity(&self.authority, &self.job, name, HOUR).unwrap();
        let address = format!("ws://{}", rendezvous.rendezvous.addr);
        worker.send_line(&json!({"rendezvous": address, "ticket": ticket, "identity": identity}));
        assert_eq!(worker.next_line(), "there");
        worker
    }
}

/// Starts an attempt with an edge from each of `from` to each of `to`.
pub(crate) fn begin_all(
    from: &mut [WorkerProcess],
    to: &mut [WorkerProcess],
    attempt: u32,
    load: &EdgeLoad,
) {
    let (producers, consumers) = (worker_names(from), worker_names(to));
    for worker in from {
        worker.begin_attempt(attempt, &[], &consumers, load);
    }
    for worker in to {
        worker.begin_attempt(attempt, &producers, &[], load);
    }
}

pub(crate) fn worker_names(workers: &[WorkerProcess]) -> Vec<String> {
    workers.iter().map(|worker| worker.name.clone()).collect()
}

impl WorkerProcess {
    fn new(name: &str, mut child: Child) -> Self {
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self {
            name: name.to_owned(),
            stdin: child.stdin.take().unwrap(),
            child,
            lines,
        }
    }

    pub(crate) fn send_line(&mut self, what: &Value) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    pub(crate) fn next_line(&self) -> String {
        self.lines
            .recv_timeout(REPLY_TIMEOUT)
            .unwrap_or_else(|error| panic!("{} is silent: {error}", self.name))
    }

    pub(crate) fn begin_attempt(
        &mut self,
        attempt: u32,
        from: &[String],
        to: &[String],
        load: &EdgeLoad,
    ) {
        let assignment = WorkerAssignment {
            name: self.name.clone(),
            attempt,
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
            window: 256 << 10,
            checkpoint: 0,
            spill: None,
            connect_timeout: load.connect_timeout,
        };
        let EdgeLoad {
            batches,
            size,
            transports: over,
            path,
            pause,
            ..
        } = load;
        self.send_line(
            &json!({"orders": assignment, "batches": batches, "size": size, "over": over, "path": path, "pause": pause}),
        );
    }

    /// Waits for the report at the end of an attempt.
    pub(crate) fn attempt_result(&self) -> AttemptResult {
        let mut report: Value = serde_json::from_str(&self.next_line()).unwrap();
        AttemptResult {
            failure: report["failure"].as_str().map(str::to_owned),
            stats: report["stats"].take(),
        }
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill_process(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl AttemptResult {
    /// Paths of the edges, and all bytes over the relay. Panics when the attempt has failed.
    pub(crate) fn assert_success(&self) -> (Vec<String>, u64) {
        assert_eq!(self.failure, None, "{self:?}");
        let edges = ["inputs", "outputs"]
            .iter()
            .flat_map(|end| self.stats[end].as_array().unwrap());
        let (paths, relayed): (Vec<_>, Vec<_>) = edges
            .map(|edge| {
                (
                    edge["path"].as_str().unwrap().to_owned(),
                    edge["relayed"].as_u64().unwrap(),
                )
            })
            .unzip();
        (paths, relayed.iter().sum())
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|why| why.contains(" lost: "))
    }
}
