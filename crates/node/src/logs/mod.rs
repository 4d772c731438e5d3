//! Output of instances, stored for a while and delivered to readers.
//!
//! Each function has a [`log_ring::LogRing`] that outlives its instances, and files ([`log_files`])
//! that outlive the process. The ring starts with the lines of the files. Readers get the stored
//! lines and, if they follow, new ones through a bounded channel. A slow reader loses lines and is
//! gets their number, so no writer waits for it.

pub mod line_splitter;
pub mod log_files;
pub mod log_ring;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nearpath_types::{FunctionId, InstanceId, LogLine, LogQuery};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use line_splitter::LineSplitter;
use log_files::{LogFileBound, LogFiles};
use log_ring::{LogBound, LogRing};

/// Maximum number of lines that wait for a following reader.
const MAX_FOLLOWER_LINES: usize = 1_024;

/// Maximum wait for the last lines of a node to be on disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Logs of all functions on the node. Clones share their state.
#[derive(Debug, Clone)]
pub struct LogStore {
    bound: LogBound,
    files: Option<LogFiles>,
    functions: Arc<Mutex<HashMap<FunctionId, FunctionLog>>>,
}

#[derive(Debug)]
struct FunctionLog {
    ring: LogRing,
    followers: Vec<LogFollower>,
}

impl FunctionLog {
    fn new(bound: LogBound) -> Self {
        Self {
            ring: LogRing::new(bound),
            followers: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct LogFollower {
    query: LogQuery,
    to: mpsc::Sender<LogLine>,
    lost: u64,
}

impl LogFollower {
    /// Delivers a line; returns whether the reader still exists.
    fn deliver_line(&mut self, line: &LogLine) -> bool {
        if !log_ring::matches_query(&self.query, line) {
            return !self.to.is_closed();
        }
        let free = self.to.capacity();
        // Room for the notice and the line itself.
        if self.lost > 0 && free >= 2 {
            let text = format!(
                "nearpath: {} lines were not delivered: the reader is too slow",
                self.lost
            );
            // Cannot be full: this is the only sender, and two places are free.
            let _ = self.to.try_send(LogLine {
                text,
                ..line.clone()
            });
            self.lost = 0;
        }
        let full = self.lost > 0 || self.to.try_send(line.clone()).is_err();
        self.lost += u64::from(full);
        !self.to.is_closed()
    }
}

impl LogStore {
    /// Creates an empty store with limits for each function.
    pub fn new(bound: LogBound) -> Self {
        Self {
            bound,
            files: None,
            functions: Arc::default(),
        }
    }

    /// Also keeps lines in `folder`. Without room for it on the disk they stay in memory alone.
    pub fn with_files(self, folder: PathBuf, bound: LogFileBound) -> Self {
        let files = LogFiles::start(folder, bound).inspect_err(
            |error| tracing::warn!(%error, "log files: none, lines of functions end with this process"),
        );
        Self {
            files: files.ok(),
            ..self
        }
    }

    /// Waits until the files hold all lines, for a few seconds at most. Blocks.
    pub fn flush(&self) {
        self.files
            .iter()
            .for_each(|files| files.flush(FLUSH_TIMEOUT));
    }

    /// Fills the ring of a function from its files, when it has none yet.
    fn load_function(&self, function: &FunctionId) {
        let Some(files) = &self.files else { return };
        if self.lock_functions().contains_key(function) {
            return;
        }
        // Without the lock: other functions do not wait for the disk.
        let lines = files.read_lines(function);
        let mut all = self.lock_functions();
        if lines.is_empty() || all.contains_key(function) {
            return;
        }
        let mut log = FunctionLog::new(self.bound);
        lines.into_iter().for_each(|line| log.ring.push_line(line));
        all.insert(function.clone(), log);
    }

    fn lock_functions(&self) -> MutexGuard<'_, HashMap<FunctionId, FunctionLog>> {
        self.functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn with_log<T>(&self, function: &FunctionId, f: impl FnOnce(&mut FunctionLog) -> T) -> T {
        self.load_function(function);
        let mut all = self.lock_functions();
        if !all.contains_key(function) {
            all.insert(function.clone(), FunctionLog::new(self.bound));
        }
        f(all
            .get_mut(function)
            .expect("inserted above when it was missing"))
    }

    /// Adds a line.
    pub fn push_line(&self, function: &FunctionId, instance: InstanceId, text: String) {
        let line = LogLine {
            name: function.name.to_string(),
            namespace: function.namespace.to_string(),
            instance: instance.to_string(),
            timestamp: SystemTime::now(),
            text,
        };
        self.with_log(function, |log| {
            log.followers
                .retain_mut(|follower| follower.deliver_line(&line));
            // Under the lock, so that the files have the ring's order.
            self.files
                .iter()
                .for_each(|files| files.append_line(function, &line));
            log.ring.push_line(line);
        });
    }

    /// Returns the last non-empty line of an instance.
    pub fn last_line(&self, function: &FunctionId, instance: InstanceId) -> Option<String> {
        self.lock_functions()
            .get(function)?
            .ring
            .last_line_of(&instance.to_string())
            .map(str::to_owned)
    }

    /// Removes a function's lines, which ends its followers.
    pub fn remove_function(&self, function: &FunctionId) {
        self.lock_functions().remove(function);
        self.files
            .iter()
            .for_each(|files| files.remove_function(function));
    }

    /// Removes the files of functions that ended while no node ran, or before it knew them.
    pub fn remove_others<'a>(&self, kept: impl Iterator<Item = &'a FunctionId>) {
        if let Some(files) = &self.files {
            files.remove_others(kept);
        }
    }

    /// Answers a query: stored lines first, then new ones. Needs a running runtime.
    pub fn read_lines(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        // Small: lines wait in the follower's channel.
        let (to_reader, reader) = mpsc::channel(64);
        let (live, stored) = self.subscribe_query(query);
        tokio::spawn(deliver_lines(stored, live, to_reader));
        reader
    }

    /// Selects the stored lines and adds the follower under one lock, so no line is missing or
    /// doubled.
    fn subscribe_query(&self, query: LogQuery) -> (mpsc::Receiver<LogLine>, Vec<LogLine>) {
        self.load_function(&query.function);
        // A channel needs room for one line at least.
        let (to, live) = mpsc::channel(if query.follow { MAX_FOLLOWER_LINES } else { 1 });
        let stored = match query.follow {
            false => self
                .lock_functions()
                .get(&query.function)
                .map(|log| log.ring.select_lines(&query))
                .unwrap_or_default(),
            true => self.with_log(&query.function.clone(), |log| {
                let stored = log.ring.select_lines(&query);
                log.followers.push(LogFollower { query, to, lost: 0 });
                stored
            }),
        };
        (live, stored)
    }

    /// Reads one output of an instance to its end. Needs a running runtime.
    pub async fn collect_output(self, function: FunctionId, instance: InstanceId, output: OwnedFd) {
        let Ok(mut pipe) = pipe::Receiver::from_owned_fd(output) else {
            return;
        };
        let (mut lines, mut bytes) = (
            LineSplitter::default(),
            Vec::with_capacity(line_splitter::MAX_LINE_BYTES),
        );
        // An error is treated as the end: a pipe does not recover.
        while matches!(pipe.read_buf(&mut bytes).await, Ok(n) if n > 0) {
            lines.push_bytes(&bytes, |text| self.push_line(&function, instance, text));
            bytes.clear();
        }
        lines
            .finish_line()
            .into_iter()
            .for_each(|text| self.push_line(&function, instance, text));
    }
}

/// Forwards lines until no more can come, or the reader is gone.
async fn deliver_lines(
    stored: Vec<LogLine>,
    mut live: mpsc::Receiver<LogLine>,
    to: mpsc::Sender<LogLine>,
) {
    for line in stored {
        if to.send(line).await.is_err() {
            return;
        }
    }
    loop {
        let line = tokio::select! {
            line = live.recv() => line,
            // A quiet function would otherwise keep the task of a reader that has left.
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
