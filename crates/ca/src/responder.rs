//! The callee's side of a TLS handshake that another instance's watchdog begins.
//!
//! The node runs this side in place of the callee, with the callee's certificate and key, which the
//! issuer keeps in this process. The caller's key stays in its watchdog. The datagrams travel over
//! the node's socket to that watchdog, not over the network. The computation runs on the calling
//! thread, not on the issuer's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use nearpath_wire::zero_rtt::{WorkerSessions, mint};

use crate::thread::IssuerCommand;

/// Answers one handshake on behalf of the callee, a `worker` in the terms of
/// [`nearpath_wire::zero_rtt`].
pub struct HandshakeResponder {
    callee: String,
    caller: SocketAddr,
    jobs: Sender<IssuerCommand>,
    worker: Option<(mint::WorkerHandshake, Arc<WorkerSessions>)>,
}

impl HandshakeResponder {
    pub(crate) fn new(callee: &str, caller: SocketAddr, jobs: Sender<IssuerCommand>) -> Self {
        Self {
            callee: callee.to_owned(),
            caller,
            jobs,
            worker: None,
        }
    }

    /// Takes the caller's datagrams. Returns the datagrams for the caller, and true when the
    /// handshake is over.
    ///
    /// After `true`, the callee's session entries are queued for its watchdog. A step takes some
    /// tenths of a millisecond of CPU time.
    pub fn exchange_datagrams(&mut self, datagrams: &[Vec<u8>]) -> (Vec<Vec<u8>>, bool) {
        // The callee or the issuer has ended: an empty reply tells the caller to give up.
        let Some((handshake, sessions)) = self.worker() else {
            return (Vec::new(), true);
        };
        let reply = handshake.exchange_datagrams(datagrams);
        let (done, sessions) = (handshake.is_done(), Arc::clone(sessions));
        if done {
            self.deliver_entries(&sessions);
        }
        (reply, done)
    }

    /// Returns the callee's side. The first call asks the issuer for the callee's configuration,
    /// and blocks until it answers.
    fn worker(&mut self) -> Option<&mut (mint::WorkerHandshake, Arc<WorkerSessions>)> {
        if self.worker.is_none() {
            let (reply, setup) = channel();
            self.jobs
                .send(IssuerCommand::SetUpWorker {
                    callee: self.callee.clone(),
                    reply,
                })
                .ok()?;
            let (config, sessions) = setup.recv().ok().flatten()?;
            let handshake = mint::WorkerHandshake::new(config, self.caller, Instant::now());
            self.worker = Some((handshake, sessions));
        }
        self.worker.as_mut()
    }

    /// Queues the session entries for the callee's watchdog, and waits until they are queued. The
    /// callee needs them before the caller's first flight (0-RTT).
    fn deliver_entries(&self, sessions: &WorkerSessions) {
        let (done, delivered) = channel();
        let entries = sessions.drain_entries();
        if self
            .jobs
            .send(IssuerCommand::DeliverEntries {
                callee: self.callee.clone(),
                entries,
                done,
            })
            .is_ok()
        {
            // The caller gets its last datagrams only after this, so its first call comes later
            // than the entries. An error means that the issuer has ended, and the callee with it.
            let _ = delivered.recv();
        }
    }
}
