//! Sessions with instances that were never contacted: the caller's half of a handshake in memory.
//!
//! The node runs the other half with the callee's configuration; frames carry the datagrams. So
//! each key stays where it is. Other threads compute the handshake: calls do not wait for it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nearpath_types::frames::{self, HandshakeMessage};
use nearpath_wire::quic;
use nearpath_wire::zero_rtt::CallerSessions;
use nearpath_wire::zero_rtt::mint::CallerHandshake;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Maximum number of concurrent handshakes: each holds some 10 KB on both sides.
const MAX_CONCURRENT_HANDSHAKES: usize = 2;
/// Time limit of one handshake; the node may be busy with a thousand others.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum steps of one handshake; three suffice.
const MAX_HANDSHAKE_STEPS: usize = 10;

type DatagramList = Vec<Vec<u8>>;

/// Handshakes of this instance that are under way.
#[derive(Debug)]
pub(super) struct SessionMinter {
    to_node: mpsc::UnboundedSender<Vec<u8>>,
    permits: Semaphore,
    pending: std::cell::RefCell<HashMap<String, mpsc::UnboundedSender<DatagramList>>>,
}

impl SessionMinter {
    pub(super) fn new(to_node: mpsc::UnboundedSender<Vec<u8>>) -> Self {
        Self {
            to_node,
            permits: Semaphore::new(MAX_CONCURRENT_HANDSHAKES),
            pending: Default::default(),
        }
    }

    /// Passes on the node's half. A handshake that was given up has no receiver, and its half is
    /// dropped.
    pub(super) fn handle_handshake(&self, half: HandshakeMessage) {
        if let Some(waiting) = self.pending.borrow().get(&half.callee) {
            let _ = waiting.send(half.datagrams); // it may just have been given up
        }
    }

    /// Makes a session for `caller` with the incarnation `name`. Without it the first connection
    /// takes one round trip more.
    pub(super) async fn mint_session(
        &self,
        caller: &quic::CallerConfig,
        sessions: &CallerSessions,
        name: &str,
        addr: SocketAddr,
    ) {
        // A single handshake per callee: the frames name the callee and nothing else.
        if self.pending.borrow().contains_key(name) {
            return;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        self.pending.borrow_mut().insert(name.to_owned(), sender);
        // Fails only for a closed semaphore, and nothing closes this one.
        if let Ok(_permit) = self.permits.acquire().await {
            let _ = timeout(
                HANDSHAKE_TIMEOUT,
                self.exchange_datagrams(caller, sessions, name, addr, receiver),
            )
            .await; // without a session it waits for a handshake
        }
        self.pending.borrow_mut().remove(name);
    }

    /// Exchanges datagrams until there is a session. `None`: one of the halves gave up.
    async fn exchange_datagrams(
        &self,
        caller: &quic::CallerConfig,
        sessions: &CallerSessions,
        name: &str,
        addr: SocketAddr,
        mut incoming: mpsc::UnboundedReceiver<DatagramList>,
    ) -> Option<()> {
        let (config, named) = (caller.config().clone(), name.to_owned());
        let begin = move || CallerHandshake::new(config, &named, addr, Instant::now()).ok();
        // On a blocking thread: public-key operations would delay every call on this one.
        let (mut half, mut received) = (spawn_blocking(begin).await.ok()??, DatagramList::new());
        for _ in 0..MAX_HANDSHAKE_STEPS {
            let datagrams;
            (half, datagrams) = spawn_blocking(move || step_handshake(half, &received))
                .await
                .ok()?;
            // The ticket comes in the server's last flight, so a stored session means success.
            if sessions.session_count(name) > 0 {
                return Some(());
            }
            let half = HandshakeMessage {
                callee: name.to_owned(),
                datagrams,
            };
            self.to_node.send(frames::handshake_frame(&half)).ok()?;
            // An empty list is the node's refusal (`contract/identity.md`).
            received = incoming
                .recv()
                .await
                .filter(|datagrams| !datagrams.is_empty())?;
        }
        None
    }
}

fn step_handshake(
    mut half: CallerHandshake,
    received: &DatagramList,
) -> (CallerHandshake, DatagramList) {
    let replies = half.exchange_datagrams(received);
    (half, replies)
}
