//! A backend: a connection to the server that is logged in.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;

use super::backend_state::{BackendState, STATUS_IDLE};
use super::cancel::{self, CancelTarget, CancelsInFlight};
use super::connection::PostgresConnection;
use super::frame::HEADER_BYTES;
use super::message;
use nearpath_connpool::idle::ReusableConnection;
use nearpath_connpool::socket::UpstreamSocket;

/// Time for cleaning a backend; one that takes longer is closed.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the statement of a client that has left. It runs to its end, as without a pool; after
/// this time it is cancelled.
const LAST_STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle time after which a backend is probed before use: its server may have vanished without
/// closing the connection.
pub(super) const UNPROBED_IDLE_AGE: Duration = Duration::from_secs(5);
/// Time for the answer to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const SYNC: &[u8] = b"S\0\0\0\x04";
const TERMINATE: &[u8] = b"X\0\0\0\x04";

#[derive(Debug)]
pub(super) struct PostgresBackend {
    pub(super) connection: PostgresConnection<UpstreamSocket>,
    pub(super) state: BackendState,
    /// Address of the server: a name may mean several.
    pub(super) addr: SocketAddr,
    /// Cancellations in flight to this backend.
    pub(super) cancels_in_flight: Rc<CancelsInFlight>,
    /// Start of the current idle time.
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

    /// Returns where cancellations for the client of this backend go.
    pub(super) fn cancel_target(&self) -> CancelTarget {
        CancelTarget {
            addr: self.addr,
            key: self.state.key,
            cancels_in_flight: self.cancels_in_flight.clone(),
        }
    }

    /// Returns whether no message is outstanding in either direction, in whole or in part.
    pub(super) fn is_drained(&self) -> bool {
        self.connection.outgoing.is_empty()
            && self.connection.incoming.is_empty()
            && self.connection.incoming.is_between_messages()
    }

    /// Returns the backend if its server still answers. One that has been idle for less than
    /// `unprobed_age` is returned as it is.
    ///
    /// With its answer, the server reports the parameters that have changed since the last one.
    pub(super) async fn probe(mut self, unprobed_age: Duration) -> Option<Self> {
        if self.idle_since.elapsed() < unprobed_age {
            return Some(self);
        }
        let answer = async {
            // A Sync changes nothing and has exactly one reply, ReadyForQuery.
            self.connection.outgoing.extend_from_slice(SYNC);
            self.connection.flush().await?;
            // No statement was sent: these are changes of the server's own.
            for (name, value) in self.read_until_ready().await? {
                self.state.set_initial_parameter(name, value);
            }
            io::Result::Ok(())
        };
        let answered = matches!(
            tokio::time::timeout(PROBE_TIMEOUT, answer).await,
            Ok(Ok(()))
        );
        if answered && self.is_quiet() {
            self.idle_since = Instant::now();
            return Some(self);
        }
        self.close_abruptly();
        None
    }

    /// Ends an open transaction and removes all state of a client. Returns the backend only if the
    /// server confirmed each step.
    pub(super) async fn clean_session(mut self) -> Option<Self> {
        // A late cancellation would hit the statement of the next client.
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
        // `DISCARD ALL` fails within a transaction block, so the transaction ends first.
        let commands = [(in_transaction, "ROLLBACK"), (true, "DISCARD ALL")];
        let commands: Vec<_> = commands
            .into_iter()
            .filter_map(|(wanted, command)| wanted.then_some(command))
            .collect();
        // Both go out in one write: the cleanup costs one round trip.
        for command in &commands {
            message::write_message(&mut self.connection.outgoing, b'Q', |out| {
                message::write_text(out, command.as_bytes())
            });
        }
        self.connection.flush().await?;
        for _ in commands {
            let reported = self.read_until_ready().await?;
            self.state.parameters.extend(reported);
        }
        self.state.adopt_parameters();
        self.state.forget_named();
        self.state.forget_unnamed();
        self.state.needs_cleaning = false;
        if self.state.status == STATUS_IDLE {
            Ok(())
        } else {
            Err(io::Error::other("a transaction is still open"))
        }
    }

    /// Reads up to ReadyForQuery, and returns the parameters that the server reported.
    async fn read_until_ready(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut reported = Vec::new();
        loop {
            let message = self.connection.read_message().await?;
            let body = &message[HEADER_BYTES..];
            match message[0] {
                b'Z' => {
                    self.state.status = body.first().copied().unwrap_or_default();
                    return Ok(reported);
                }
                b'S' => reported.extend(message::parse_parameter(body)),
                b'C' | b'N' => {}
                _ => return Err(io::Error::other("unexpected message during cleanup")),
            }
        }
    }

    /// Sends Terminate, and waits until the server has closed.
    async fn terminate(mut self) {
        let closing = async {
            if self.connection.incoming.is_between_messages() {
                self.connection.outgoing.extend_from_slice(TERMINATE);
            }
            self.connection.flush().await?;
            let mut rest = [0; 4096];
            // The permit below `max` ends with the connection. The server has to close first, so
            // that `max` holds there.
            while self.connection.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        if tokio::time::timeout(LAST_STATEMENT_TIMEOUT, closing)
            .await
            .is_err()
        {
            // The statement still runs; the server notices the closed socket only afterwards.
            cancel::send_cancel(self.addr, self.state.key).await;
        }
        self.connection.stream.close_with_message(&[]).await;
    }

    /// Closes the connection without Terminate: a message to the server is incomplete, or the
    /// server is gone.
    pub(super) fn close_abruptly(self) {
        tokio::task::spawn_local(self.connection.stream.close_with_message(&[]));
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
