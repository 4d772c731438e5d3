//! A worker that sends what its consumers know, and knows what its producers send: the tests' own, and for measuring.
//!
//! On standard input, a line of JSON with `rendezvous`, `ticket` and `identity`, then one for each attempt: `orders`, `batches`
//! and `size` (on each edge), `over` (transports), `path` (before the first batch it waits until all edges take it), `pause` (in
//! the middle, until another line comes). On standard output `there`, `half` where it pauses, and a line of JSON with `failure` and `stats`.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, stdin};
use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_dataflow::remote::connection::Line;
use nearpath_dataflow::remote::connector::Met;
use nearpath_dataflow::remote::identity::Identity;
use nearpath_dataflow::worker::{Failure, Orders, Received, Stats, Worker};
use nearpath_p2p::Transport;
use nearpath_p2p::control::Settings;
use nearpath_p2p::message::Pass;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Hello {
    rendezvous: String,
    ticket: String,
    identity: String,
}

#[derive(Deserialize)]
struct Attempt {
    orders: Orders,
    batches: usize,
    size: usize,
    over: Vec<String>,
    path: Option<String>,
    pause: bool,
}

fn main() {
    let mut lines = stdin().lock().lines().map(Result::unwrap);
    let Some(hello) = lines.next() else { return };
    let hello: Hello = serde_json::from_str(&hello).unwrap();
    let settings = Settings { place: hello.rendezvous.parse().unwrap(), ticket: Pass(hello.ticket), tls: None };
    let line = Line::open(settings).unwrap();
    if !line.wait(Duration::from_secs(20)).unwrap() {
        exit(1);
    }
    println!("there");
    while let Some(attempt) = lines.next() {
        let attempt: Attempt = serde_json::from_str(&attempt).unwrap();
        let begun = Instant::now();
        let met = Met::new(&line, Identity::read(&hello.identity).unwrap(), &attempt.orders).unwrap();
        let over: Vec<Transport> = attempt.over.iter().map(|name| transport(name)).collect();
        let worker = Worker::start(attempt.orders.clone(), move || Ok(met.over(&over))).unwrap();
        let worked = work(&worker, &attempt, &mut lines);
        let failure = worked.err().map(|failure| failure.to_string());
        println!("{}", json!({"failure": failure, "stats": worker.stats(), "seconds": begun.elapsed().as_secs_f64()}));
    }
}

fn transport(name: &str) -> Transport {
    if name == "tcp" { Transport::Tcp } else { Transport::Udp }
}

/// What one worker sends another as its so-manieth batch; the length differs from batch to batch.
fn batch(from: &str, to: &str, number: usize, size: usize) -> Bytes {
    let seed = from.bytes().chain(to.bytes()).fold(number, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
    (0..size + number % 7).map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

fn work(worker: &Worker, attempt: &Attempt, lines: &mut impl Iterator<Item = String>) -> Result<(), Failure> {
    let orders = &attempt.orders;
    if let Some(path) = &attempt.path {
        wait_for(worker, path, orders)?;
    }
    for number in 0..attempt.batches {
        for (at, output) in orders.outputs.iter().enumerate() {
            worker.send(at, batch(&orders.name, &output.to, number, attempt.size))?;
        }
        if attempt.pause && number == attempt.batches / 2 && !orders.outputs.is_empty() {
            println!("half");
            lines.next();
        }
    }
    let mut came = vec![0; orders.inputs.len()];
    while let Received::Batch { input, data } = worker.receive()? {
        let awaited = batch(&orders.inputs[input].from, &orders.name, came[input], attempt.size);
        if data != awaited {
            return Err(Failure::Here(format!("batch {} of input {input} is another one", came[input])));
        }
        came[input] += 1;
    }
    worker.finish()?;
    let all = came.iter().all(|came| *came == attempt.batches);
    if all { Ok(()) } else { Err(Failure::Here(format!("so many batches came: {came:?}"))) }
}

/// A way moves by itself when there is one.
fn wait_for(worker: &Worker, path: &str, orders: &Orders) -> Result<(), Failure> {
    let until = Instant::now() + Duration::from_secs(50);
    let goes = |stats: &Stats| stats.outputs.iter().all(|edge| edge.path == path);
    while !goes(&worker.stats()) {
        if Instant::now() > until {
            return Err(Failure::Here(format!("{} does not go by {path}: {:?}", orders.name, worker.stats())));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
