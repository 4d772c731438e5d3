//! A backend: one connection to the server, logged in.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;

use super::backend_state::{BackendState, STATUS_IDLE};
use super::cancel::{self, CancelsInFlight};
use super::connection::PostgresConnection;
use super::frame::{HEADER_BYTES, split_text};
use super::message;
use nearpath_connpool::idle::ReusableConnection;
use nearpath_connpool::socket::UpstreamSocket;

/// Longest wait for a backend to become clean.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);
/// A statement that was under way when its client left runs to its end, as it would without a pool; after this it is cancelled.
const LAST_STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// A backend that has rested for so long may be gone with its machine, which says nothing: it is asked before it serves.
const UNPROBED_IDLE_AGE: Duration = Duration::from_secs(5);
/// Longest wait for its answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const SYNC: &[u8] = b"S\0\0\0\x04";
const TERMINATE: &[u8] = b"X\0\0\0\x04";

#[derive(Debug)]
pub(super) struct PostgresBackend {
    pub(super) connection: PostgresConnection<UpstreamSocket>,
    pub(super) state: BackendState,
    /// Where it is: a name may mean several servers.
    pub(super) addr: SocketAddr,
    /// Cancellations on their way to it.
    pub(super) cancels_in_flight: Rc<CancelsInFlight>,
    /// Since when it has nothing to do, if it has not.
    pub(super) idle_since: Instant,
}

impl PostgresBackend {
    pub(super) fn new(
        connection: PostgresConnection<UpstreamSocket>,
        state: BackendState,
        addr: SocketAddr,
    ) -> Self {
        Self {
            connection,
            state,
            addr,
            cancels_in_flight: Rc::default(),
            idle_since: Instant::now(),
        }
    }

    /// Nothing is left to be said, in whole or in part.
    pub(super) fn is_drained(&self) -> bool {
        self.connection.outgoing.is_empty()
            && self.connection.incoming.is_empty()
            && self.connection.incoming.is_between_messages()
    }

    /// The same, if it is still there.
    pub(super) async fn probe(mut self) -> Option<Self> {
        if self.idle_since.elapsed() < UNPROBED_IDLE_AGE {
            return Some(self);
        }
        let answer = async {
            self.connection.outgoing.extend_from_slice(SYNC);
            self.connection.flush().await?;
            self.read_until_ready().await
        };
        let answered = matches!(
            tokio::time::timeout(PROBE_TIMEOUT, answer).await,
            Ok(Ok(()))
        );
        if answered && self.is_quiet() {
            return Some(self);
        }
        self.close_abruptly();
        None
    }

    /// Ends a transaction that is open, and takes away all that a client has left. Only one that answered for it in full comes back.
    pub(super) async fn clean_session(mut self) -> Option<Self> {
        self.cancels_in_flight.wait_finished().await;
        let cleaning = tokio::time::timeout(CLEAN_TIMEOUT, self.run_cleanup()).await;
        if matches!(cleaning, Ok(Ok(()))) && self.is_quiet() {
            return Some(self);
        }
        self.close();
        None
    }

    async fn run_cleanup(&mut self) -> io::Result<()> {
        let in_transaction = self.state.status != STATUS_IDLE;
        let orders = [(in_transaction, "ROLLBACK"), (true, "DISCARD ALL")];
        let orders: Vec<_> = orders
            .into_iter()
            .filter_map(|(wanted, order)| wanted.then_some(order))
            .collect();
        for order in &orders {
            message::write_message(&mut self.connection.outgoing, b'Q', |out| {
                message::write_text(out, order.as_bytes())
            });
        }
        self.connection.flush().await?;
        for _ in orders {
            self.read_until_ready().await?;
        }
        self.state.forget_named();
        self.state.forget_unnamed();
        self.state.needs_cleaning = false;
        if self.state.status == STATUS_IDLE {
            Ok(())
        } else {
            Err(io::Error::other("a transaction is still open"))
        }
    }

    async fn read_until_ready(&mut self) -> io::Result<()> {
        loop {
            let message = self.connection.read_message().await?;
            let body = &message[HEADER_BYTES..];
            match message[0] {
                b'Z' => {
                    self.state.status = body.first().copied().unwrap_or_default();
                    return Ok(());
                }
                b'S' => self.state.set_parameter(body),
                b'C' | b'N' => {}
                _ => return Err(io::Error::other("it cannot be cleaned")),
            }
        }
    }

    /// Takes leave and waits until the server has, too.
    async fn terminate(mut self) {
        let farewell = async {
            if self.connection.incoming.is_between_messages() {
                self.connection.outgoing.extend_from_slice(TERMINATE);
            }
            self.connection.flush().await?;
            let mut rest = [0; 4096];
            while self.connection.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        if tokio::time::timeout(LAST_STATEMENT_TIMEOUT, farewell)
            .await
            .is_err()
        {
            cancel::send_cancel(self.addr, self.state.key).await;
        }
        self.connection.stream.close_with_message(&[]).await;
    }

    /// Closes it without a word: it is in the middle of a message to it, so that the server gives up, or nobody is there.
    pub(super) fn close_abruptly(self) {
        tokio::task::spawn_local(self.connection.stream.close_with_message(&[]));
    }
}

impl BackendState {
    /// A ParameterStatus.
    pub(super) fn set_parameter(&mut self, body: &[u8]) {
        if let Some((name, rest)) = split_text(body)
            && let Some((value, _)) = split_text(rest)
        {
            let owned = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            self.parameters.insert(owned(name), owned(value));
        }
    }
}

impl ReusableConnection for PostgresBackend {
    fn is_quiet(&self) -> bool {
        self.is_drained() && self.connection.stream.is_quiet()
    }

    fn is_binding_current(&self) -> bool {
        self.connection.stream.is_binding_current()
    }

    fn close(self) {
        tokio::task::spawn_local(self.terminate());
    }
}
