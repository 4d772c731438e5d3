//! A worker whose consumers know every batch in advance: for tests and measurements.
//!
//! Standard input: a line of JSON with `rendezvous`, `ticket` and `identity`, then one line per
//! attempt. An attempt has `orders`, `batches` and `size` (per edge), `over` (transports), `path`
//! (all edges must use it before the first batch) and `pause` (wait for another line in the
//! middle). Standard output: `there`, `half` at the pause, and a line of JSON with `failure` and
//! `stats`.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, stdin};
use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_dataflow::remote::connection::RendezvousConnection;
use nearpath_dataflow::remote::connector::RemoteConnector;
use nearpath_dataflow::remote::identity::WorkerIdentity;
use nearpath_dataflow::worker::{
    DataflowWorker, InputEvent, WorkerAssignment, WorkerFailure, WorkerStats,
};
use nearpath_p2p::Transport;
use nearpath_p2p::control::ControlSettings;
use nearpath_p2p::message::SignedToken;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct SetupLine {
    rendezvous: String,
    ticket: String,
    identity: String,
}

#[derive(Deserialize)]
struct AttemptLine {
    orders: WorkerAssignment,
    batches: usize,
    size: usize,
    over: Vec<String>,
    path: Option<String>,
    pause: bool,
}

fn main() {
    let mut lines = stdin().lock().lines().map(Result::unwrap);
    let Some(setup) = lines.next() else { return };
    let setup: SetupLine = serde_json::from_str(&setup).unwrap();
    let settings = ControlSettings {
        url: setup.rendezvous.parse().unwrap(),
        ticket: SignedToken(setup.ticket),
        tls: None,
    };
    let connection = RendezvousConnection::open(settings).unwrap();
    if !connection.wait_connected(Duration::from_secs(20)).unwrap() {
        exit(1);
    }
    println!("there");
    while let Some(attempt) = lines.next() {
        let attempt: AttemptLine = serde_json::from_str(&attempt).unwrap();
        let started = Instant::now();
        let connector = RemoteConnector::new(
            &connection,
            WorkerIdentity::from_json(&setup.identity).unwrap(),
            &attempt.orders,
        )
        .unwrap();
        let transports: Vec<Transport> = attempt
            .over
            .iter()
            .map(|name| parse_transport(name))
            .collect();
        let worker = DataflowWorker::start(attempt.orders.clone(), move || {
            Ok(connector.with_transports(&transports))
        })
        .unwrap();
        let result = run_attempt(&worker, &attempt, &mut lines);
        let failure = result.err().map(|failure| failure.to_string());
        println!(
            "{}",
            json!({"failure": failure, "stats": worker.stats(), "seconds": started.elapsed().as_secs_f64()})
        );
    }
}

fn parse_transport(name: &str) -> Transport {
    if name == "tcp" {
        Transport::Tcp
    } else {
        Transport::Udp
    }
}

/// The batch of this number from one worker to another; lengths differ between batches.
fn expected_batch(from: &str, to: &str, number: usize, size: usize) -> Bytes {
    let seed = from
        .bytes()
        .chain(to.bytes())
        .fold(number, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
    (0..size + number % 7)
        .map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8)
        .collect()
}

fn run_attempt(
    worker: &DataflowWorker,
    attempt: &AttemptLine,
    lines: &mut impl Iterator<Item = String>,
) -> Result<(), WorkerFailure> {
    let assignment = &attempt.orders;
    if let Some(path) = &attempt.path {
        wait_for_path(worker, path, assignment)?;
    }
    for number in 0..attempt.batches {
        for (at, output) in assignment.outputs.iter().enumerate() {
            worker.send_batch(
                at,
                expected_batch(&assignment.name, &output.to, number, attempt.size),
            )?;
        }
        if attempt.pause && number == attempt.batches / 2 && !assignment.outputs.is_empty() {
            println!("half");
            lines.next();
        }
    }
    let mut received = vec![0; assignment.inputs.len()];
    while let InputEvent::Batch { input, data } = worker.receive_next()? {
        let expected = expected_batch(
            &assignment.inputs[input].from,
            &assignment.name,
            received[input],
            attempt.size,
        );
        if data != expected {
            return Err(WorkerFailure::Local(format!(
                "batch {} of input {input} is another one",
                received[input]
            )));
        }
        received[input] += 1;
    }
    worker.finish_outputs()?;
    let is_complete = received.iter().all(|count| *count == attempt.batches);
    if is_complete {
        Ok(())
    } else {
        Err(WorkerFailure::Local(format!(
            "received these numbers of batches: {received:?}"
        )))
    }
}

/// Waits until all edges use `path`: links move to a direct path by themselves.
fn wait_for_path(
    worker: &DataflowWorker,
    path: &str,
    assignment: &WorkerAssignment,
) -> Result<(), WorkerFailure> {
    let deadline = Instant::now() + Duration::from_secs(50);
    let uses_path = |stats: &WorkerStats| stats.outputs.iter().all(|edge| edge.path == path);
    while !uses_path(&worker.stats()) {
        if Instant::now() > deadline {
            return Err(WorkerFailure::Local(format!(
                "{} does not go by {path}: {:?}",
                assignment.name,
                worker.stats()
            )));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
