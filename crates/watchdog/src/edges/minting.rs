//! Sessions with instances that were never contacted: the caller's half of a handshake in memory.
//!
//! The other half is the node's, with the callee's configuration; its datagrams come and go by frames. So each key stays where it is.
//! The work is done on another thread: calls do not wait for it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nearpath_types::frames::{self, Handshake};
use nearpath_wire::early::Sessions;
use nearpath_wire::early::mint::Caller;
use nearpath_wire::quic;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Handshakes at a time: each holds some ten KB on both sides.
const AT_A_TIME: usize = 2;
/// How long one may take; the node may be busy with a thousand others.
const LIMIT: Duration = Duration::from_secs(10);
/// Steps that one takes at most: three, unless something is wrong.
const ROUNDS: usize = 10;

type Datagrams = Vec<Vec<u8>>;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Minting {
    to_node: mpsc::UnboundedSender<Vec<u8>>,
    turns: Semaphore,
    under_way: std::cell::RefCell<HashMap<String, mpsc::UnboundedSender<Datagrams>>>,
}

impl Minting {
    pub(super) fn new(to_node: mpsc::UnboundedSender<Vec<u8>>) -> Self {
        Self { to_node, turns: Semaphore::new(AT_A_TIME), under_way: Default::default() }
    }

    /// The node's half has said something. One that nobody waits for was given up.
    pub(super) fn hear(&self, half: Handshake) {
        if let Some(waiting) = self.under_way.borrow().get(&half.callee) {
            let _ = waiting.send(half.datagrams); // it may just have been given up
        }
    }

    /// Makes a session for `caller` with the incarnation `name`. Without one the first connection takes a round trip more.
    pub(super) async fn mint(&self, caller: &quic::Caller, sessions: &Sessions, name: &str, addr: SocketAddr) {
        if self.under_way.borrow().contains_key(name) {
            return;
        }
        let (say, hear) = mpsc::unbounded_channel();
        self.under_way.borrow_mut().insert(name.to_owned(), say);
        if let Ok(_turn) = self.turns.acquire().await {
            let _ = timeout(LIMIT, self.exchange(caller, sessions, name, addr, hear)).await; // without a session it waits for a handshake
        }
        self.under_way.borrow_mut().remove(name);
    }

    /// Nothing when one of the halves gave up.
    async fn exchange(
        &self,
        caller: &quic::Caller,
        sessions: &Sessions,
        name: &str,
        addr: SocketAddr,
        mut hear: mpsc::UnboundedReceiver<Datagrams>,
    ) -> Option<()> {
        let (config, named) = (caller.config().clone(), name.to_owned());
        let begin = move || Caller::new(config, &named, addr, Instant::now()).ok();
        let (mut half, mut heard) = (spawn_blocking(begin).await.ok()??, Datagrams::new());
        for _ in 0..ROUNDS {
            let datagrams;
            (half, datagrams) = spawn_blocking(move || step(half, &heard)).await.ok()?;
            if sessions.left(name) > 0 {
                return Some(());
            }
            let half = Handshake { callee: name.to_owned(), datagrams };
            self.to_node.send(frames::handshake(&half)).ok()?;
            heard = hear.recv().await.filter(|datagrams| !datagrams.is_empty())?;
        }
        None
    }
}

fn step(mut half: Caller, heard: &Datagrams) -> (Caller, Datagrams) {
    let said = half.step(heard);
    (half, said)
}
