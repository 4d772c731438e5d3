//! A backend: one connection to the server, logged in.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;

use super::backend_state::{Facts, IDLE};
use super::cancel::{self, Cancels};
use super::connection::Line;
use super::frame::{HEAD, text};
use super::message;
use nearpath_connpool::idle::Reused;
use nearpath_connpool::socket::Socket;

/// Longest wait for a backend to become clean.
const CLEANING: Duration = Duration::from_secs(5);
/// A statement that was under way when its client left runs to its end, as it would without a pool; after this it is cancelled.
const LAST_WORK: Duration = Duration::from_secs(60);
/// A backend that has rested for so long may be gone with its machine, which says nothing: it is asked before it serves.
const LONG: Duration = Duration::from_secs(5);
/// Longest wait for its answer.
const ROUSING: Duration = Duration::from_secs(1);
const SYNC: &[u8] = b"S\0\0\0\x04";
const TERMINATE: &[u8] = b"X\0\0\0\x04";

#[derive(Debug)]
pub(super) struct Backend {
    pub(super) line: Line<Socket>,
    pub(super) facts: Facts,
    /// Where it is: a name may mean several servers.
    pub(super) at: SocketAddr,
    /// Cancellations on their way to it.
    pub(super) cancels: Rc<Cancels>,
    /// Since when it has nothing to do, if it has not.
    pub(super) rests: Instant,
}

impl Backend {
    pub(super) fn new(line: Line<Socket>, facts: Facts, at: SocketAddr) -> Self {
        Self { line, facts, at, cancels: Rc::default(), rests: Instant::now() }
    }

    /// Nothing is left to be said, in whole or in part.
    pub(super) fn has_said_all(&self) -> bool {
        self.line.out.is_empty() && self.line.inbox.is_empty() && self.line.inbox.is_between_messages()
    }

    /// The same, if it is still there.
    pub(super) async fn roused(mut self) -> Option<Self> {
        if self.rests.elapsed() < LONG {
            return Some(self);
        }
        let answer = async {
            self.line.out.extend_from_slice(SYNC);
            self.line.flush().await?;
            self.until_ready().await
        };
        let answered = matches!(tokio::time::timeout(ROUSING, answer).await, Ok(Ok(())));
        if answered && self.is_quiet() {
            return Some(self);
        }
        self.hang_up();
        None
    }

    /// Ends a transaction that is open, and takes away all that a client has left. Only one that answered for it in full comes back.
    pub(super) async fn cleaned(mut self) -> Option<Self> {
        self.cancels.are_over().await;
        let cleaning = tokio::time::timeout(CLEANING, self.clean()).await;
        if matches!(cleaning, Ok(Ok(()))) && self.is_quiet() {
            return Some(self);
        }
        self.close();
        None
    }

    async fn clean(&mut self) -> io::Result<()> {
        let in_transaction = self.facts.status != IDLE;
        let orders = [(in_transaction, "ROLLBACK"), (true, "DISCARD ALL")];
        let orders: Vec<_> = orders.into_iter().filter_map(|(wanted, order)| wanted.then_some(order)).collect();
        for order in &orders {
            message::message(&mut self.line.out, b'Q', |out| message::text(out, order.as_bytes()));
        }
        self.line.flush().await?;
        for _ in orders {
            self.until_ready().await?;
        }
        self.facts.forgets_named();
        self.facts.forgets_unnamed();
        self.facts.leaves = false;
        if self.facts.status == IDLE { Ok(()) } else { Err(io::Error::other("a transaction is still open")) }
    }

    async fn until_ready(&mut self) -> io::Result<()> {
        loop {
            let message = self.line.message().await?;
            let body = &message[HEAD..];
            match message[0] {
                b'Z' => {
                    self.facts.status = body.first().copied().unwrap_or_default();
                    return Ok(());
                }
                b'S' => self.facts.set(body),
                b'C' | b'N' => {}
                _ => return Err(io::Error::other("it cannot be cleaned")),
            }
        }
    }

    /// Takes leave and waits until the server has, too.
    async fn leave(mut self) {
        let farewell = async {
            if self.line.inbox.is_between_messages() {
                self.line.out.extend_from_slice(TERMINATE);
            }
            self.line.flush().await?;
            let mut rest = [0; 4096];
            while self.line.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        if tokio::time::timeout(LAST_WORK, farewell).await.is_err() {
            cancel::send(self.at, self.facts.key).await;
        }
        self.line.stream.leave(&[]).await;
    }

    /// Closes it without a word: it is in the middle of a message to it, so that the server gives up, or nobody is there.
    pub(super) fn hang_up(self) {
        tokio::task::spawn_local(self.line.stream.leave(&[]));
    }
}

impl Facts {
    /// A ParameterStatus.
    pub(super) fn set(&mut self, body: &[u8]) {
        if let Some((name, rest)) = text(body)
            && let Some((value, _)) = text(rest)
        {
            let owned = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            self.values.insert(owned(name), owned(value));
        }
    }
}

impl Reused for Backend {
    fn is_quiet(&self) -> bool {
        self.has_said_all() && self.line.stream.is_quiet()
    }

    fn is_at_home(&self) -> bool {
        self.line.stream.is_at_home()
    }

    fn close(self) {
        tokio::task::spawn_local(self.leave());
    }
}
