//! What instances write, kept for a while and handed to whoever asks.
//!
//! Each function has a [`ring::Ring`] that outlives its instances. Readers get what is kept and then, if they follow, what
//! comes: through a bounded channel each, so a slow reader loses lines and is told how many, and nobody waits for it.

pub mod lines;
pub mod ring;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use nearpath_types::{FunctionId, InstanceId, LogLine, LogQuery};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use lines::Lines;
use ring::{Bound, Ring};

/// Lines that may wait for a following reader.
const BACKLOG: usize = 1_024;

/// The logs of all functions on the node. Cloning makes another handle.
#[derive(Debug, Clone)]
pub struct Logs {
    bound: Bound,
    functions: Arc<Mutex<HashMap<FunctionId, Log>>>,
}

#[derive(Debug)]
struct Log {
    ring: Ring,
    followers: Vec<Follower>,
}

#[derive(Debug)]
struct Follower {
    query: LogQuery,
    to: mpsc::Sender<LogLine>,
    lost: u64,
}

impl Follower {
    /// Whether it still reads.
    fn tell(&mut self, line: &LogLine) -> bool {
        if !ring::matches(&self.query, line) {
            return !self.to.is_closed();
        }
        let free = self.to.capacity();
        if self.lost > 0 && free >= 2 {
            let text = format!("nearpath: {} lines were not delivered: the reader is too slow", self.lost);
            let _ = self.to.try_send(LogLine { text, ..line.clone() });
            self.lost = 0;
        }
        let full = self.lost > 0 || self.to.try_send(line.clone()).is_err();
        self.lost += u64::from(full);
        !self.to.is_closed()
    }
}

impl Logs {
    /// Empty, with this bound for each function.
    pub fn new(bound: Bound) -> Self {
        Self { bound, functions: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FunctionId, Log>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, function: &FunctionId, f: impl FnOnce(&mut Log) -> T) -> T {
        let mut all = self.lock();
        if !all.contains_key(function) {
            all.insert(function.clone(), Log { ring: Ring::new(self.bound), followers: Vec::new() });
        }
        f(all.get_mut(function).expect("inserted above when it was missing"))
    }

    /// Adds a line.
    pub fn push(&self, function: &FunctionId, instance: InstanceId, text: String) {
        let line = LogLine {
            name: function.name.to_string(),
            namespace: function.namespace.to_string(),
            instance: instance.to_string(),
            timestamp: SystemTime::now(),
            text,
        };
        self.with(function, |log| {
            log.followers.retain_mut(|follower| follower.tell(&line));
            log.ring.push(line);
        });
    }

    /// The last line of an instance that is not empty.
    pub fn last_line(&self, function: &FunctionId, instance: InstanceId) -> Option<String> {
        self.lock().get(function)?.ring.last_of(&instance.to_string()).map(str::to_owned)
    }

    /// Lets go of a function's lines; its followers come to an end.
    pub fn forget(&self, function: &FunctionId) {
        self.lock().remove(function);
    }

    /// Answers a query: first what is kept, then what comes. Needs a running runtime.
    pub fn read(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        let (to_reader, reader) = mpsc::channel(64);
        let (live, kept) = self.subscribe(query);
        tokio::spawn(deliver(kept, live, to_reader));
        reader
    }

    /// Takes the kept lines and joins the followers under one lock, so that no line is missing or doubled.
    fn subscribe(&self, query: LogQuery) -> (mpsc::Receiver<LogLine>, Vec<LogLine>) {
        let (to, live) = mpsc::channel(if query.follow { BACKLOG } else { 1 });
        let kept = match query.follow {
            false => self.lock().get(&query.function).map(|log| log.ring.select(&query)).unwrap_or_default(),
            true => self.with(&query.function.clone(), |log| {
                let kept = log.ring.select(&query);
                log.followers.push(Follower { query, to, lost: 0 });
                kept
            }),
        };
        (live, kept)
    }

    /// Reads one output of an instance to its end. Needs a running runtime.
    pub async fn collect(self, function: FunctionId, instance: InstanceId, output: OwnedFd) {
        let Ok(mut pipe) = pipe::Receiver::from_owned_fd(output) else { return };
        let (mut lines, mut bytes) = (Lines::default(), Vec::with_capacity(lines::LONGEST));
        while matches!(pipe.read_buf(&mut bytes).await, Ok(n) if n > 0) {
            lines.push(&bytes, |text| self.push(&function, instance, text));
            bytes.clear();
        }
        lines.finish().into_iter().for_each(|text| self.push(&function, instance, text));
    }
}

/// Ends when everything is delivered and nothing more can come, or when the reader is gone.
async fn deliver(kept: Vec<LogLine>, mut live: mpsc::Receiver<LogLine>, to: mpsc::Sender<LogLine>) {
    for line in kept {
        if to.send(line).await.is_err() {
            return;
        }
    }
    loop {
        let line = tokio::select! {
            line = live.recv() => line,
            () = to.closed() => None,
        };
        let Some(line) = line else { return };
        if to.send(line).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
