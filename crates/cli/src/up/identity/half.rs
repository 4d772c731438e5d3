//! The callee's half of a handshake in memory whose caller is another instance: run on the thread of whoever asks, with the configuration that
//! the office keeps. Keys stay in this process, the caller's in its watchdog.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use nearpath_node::{Answerer, Step};
use nearpath_wire::early::{Register, mint};

use super::thread::Job;

/// See the module's text.
pub(super) struct Half {
    callee: String,
    caller: SocketAddr,
    jobs: Sender<Job>,
    begun: Option<(mint::Worker, Arc<Register>)>,
}

impl Half {
    pub(super) fn new(callee: &str, caller: SocketAddr, jobs: Sender<Job>) -> Self {
        Self { callee: callee.to_owned(), caller, jobs, begun: None }
    }

    fn begin(&mut self) -> Option<&mut (mint::Worker, Arc<Register>)> {
        if self.begun.is_none() {
            let (answer, config) = channel();
            self.jobs.send(Job::Worker { callee: self.callee.clone(), answer }).ok()?;
            let config = config.recv().ok().flatten()?;
            let worker = mint::Worker::new(config.0, self.caller, Instant::now());
            self.begun = Some((worker, config.1));
        }
        self.begun.as_mut()
    }

    /// The callee has its entries, or is about to read them, before the caller has its session.
    fn hand_over(&self, register: &Register) {
        let (done, handed) = channel();
        let entries = register.drain();
        if self.jobs.send(Job::Enter { callee: self.callee.clone(), entries, done }).is_ok() {
            let _ = handed.recv(); // an office that has closed has told nobody
        }
    }
}

impl Answerer for Half {
    fn step(&mut self, datagrams: &[Vec<u8>]) -> Step {
        let Some((worker, register)) = self.begin() else { return Step { datagrams: Vec::new(), done: true } };
        let datagrams = worker.step(datagrams);
        let (done, register) = (worker.is_done(), Arc::clone(register));
        if done {
            self.hand_over(&register);
        }
        Step { datagrams, done }
    }
}
