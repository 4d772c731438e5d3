//! Sessions with instances that were never contacted: the caller's half of a handshake in memory.
//!
//! The other half is the node's, with the callee's configuration; its datagrams come and go by frames. So each key stays where it is.
//! The work is done on another thread: calls do not wait for it.

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

/// Handshakes at a time: each holds some ten KB on both sides.
const MAX_CONCURRENT_HANDSHAKES: usize = 2;
/// How long one may take; the node may be busy with a thousand others.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Steps that one takes at most: three, unless something is wrong.
const MAX_HANDSHAKE_STEPS: usize = 10;

type DatagramList = Vec<Vec<u8>>;

/// See the module's text.
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

    /// The node's half has said something. One that nobody waits for was given up.
    pub(super) fn handle_handshake(&self, half: HandshakeMessage) {
        if let Some(waiting) = self.pending.borrow().get(&half.callee) {
            let _ = waiting.send(half.datagrams); // it may just have been given up
        }
    }

    /// Makes a session for `caller` with the incarnation `name`. Without one the first connection takes a round trip more.
    pub(super) async fn mint_session(
        &self,
        caller: &quic::CallerConfig,
        sessions: &CallerSessions,
        name: &str,
        addr: SocketAddr,
    ) {
        if self.pending.borrow().contains_key(name) {
            return;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        self.pending.borrow_mut().insert(name.to_owned(), sender);
        if let Ok(_turn) = self.permits.acquire().await {
            let _ = timeout(
                HANDSHAKE_TIMEOUT,
                self.exchange_datagrams(caller, sessions, name, addr, receiver),
            )
            .await; // without a session it waits for a handshake
        }
        self.pending.borrow_mut().remove(name);
    }

    /// Nothing when one of the halves gave up.
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
        let (mut half, mut received) = (spawn_blocking(begin).await.ok()??, DatagramList::new());
        for _ in 0..MAX_HANDSHAKE_STEPS {
            let datagrams;
            (half, datagrams) = spawn_blocking(move || step_handshake(half, &received))
                .await
                .ok()?;
            if sessions.session_count(name) > 0 {
                return Some(());
            }
            let half = HandshakeMessage {
                callee: name.to_owned(),
                datagrams,
            };
            self.to_node.send(frames::handshake_frame(&half)).ok()?;
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
