//! The callee's half of an in-memory handshake whose caller is another instance.
//!
//! It runs on the thread of its user, with the configuration that the issuer keeps for the callee. The callee's key stays in this
//! process, the caller's in that instance's watchdog.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use nearpath_wire::zero_rtt::{WorkerSessions, mint};

use crate::thread::IssuerJob;

/// Answers one handshake on behalf of an instance.
pub struct HandshakeResponder {
    callee: String,
    caller: SocketAddr,
    jobs: Sender<IssuerJob>,
    worker: Option<(mint::WorkerHandshake, Arc<WorkerSessions>)>,
}

impl HandshakeResponder {
    pub(crate) fn new(callee: &str, caller: SocketAddr, jobs: Sender<IssuerJob>) -> Self {
        Self {
            callee: callee.to_owned(),
            caller,
            jobs,
            worker: None,
        }
    }

    /// Takes the caller's datagrams; returns the reply, and whether the handshake is over.
    ///
    /// When it returns `true`, the callee's session entries are on their way to it. Takes some tenths of a millisecond of CPU time.
    pub fn step(&mut self, datagrams: &[Vec<u8>]) -> (Vec<Vec<u8>>, bool) {
        // Without a callee there is nothing to shake hands with: the handshake ends without a word.
        let Some((worker, register)) = self.worker() else {
            return (Vec::new(), true);
        };
        let reply = worker.exchange_datagrams(datagrams);
        let (done, register) = (worker.is_done(), Arc::clone(register));
        if done {
            self.deliver_entries(&register);
        }
        (reply, done)
    }

    /// Asks the issuer for the callee's configuration on first use.
    fn worker(&mut self) -> Option<&mut (mint::WorkerHandshake, Arc<WorkerSessions>)> {
        if self.worker.is_none() {
            let (reply, setup) = channel();
            self.jobs
                .send(IssuerJob::SetUpWorker {
                    callee: self.callee.clone(),
                    reply,
                })
                .ok()?;
            let (config, register) = setup.recv().ok().flatten()?;
            let worker = mint::WorkerHandshake::new(config, self.caller, Instant::now());
            self.worker = Some((worker, register));
        }
        self.worker.as_mut()
    }

    /// Waits until the entries are queued for the callee: they must precede the caller's first flight.
    fn deliver_entries(&self, register: &WorkerSessions) {
        let (done, delivered) = channel();
        let entries = register.drain_entries();
        if self
            .jobs
            .send(IssuerJob::DeliverEntries {
                callee: self.callee.clone(),
                entries,
                done,
            })
            .is_ok()
        {
            let _ = delivered.recv(); // an error means that the issuer has ended, and the callee with it
        }
    }
}
