//! Relay of one client: bytes both ways, and a backend for as long as the client needs one.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::backend::PostgresBackend;
use super::cancel::CancelRegistration;
use super::client_state::PostgresClientState;
use super::connection::PostgresConnection;
use super::frame::MessagePiece;
use super::message::{self, sqlstate};
use super::session::{PostgresProtocolError, PostgresSession, SessionOutputs};
use super::state::PostgresState;
use crate::ClientContext;
use crate::client_stream::ClientStream;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::{ReusableConnection, UsedConnection};

/// Time for a client to read its last message.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// An authenticated client with its session and its backend.
pub(super) struct PostgresRelay {
    client: PostgresConnection<ClientStream>,
    client_state: PostgresClientState,
    session: PostgresSession,
    cancel_registration: CancelRegistration,
    state: Rc<PostgresState>,
    context: ClientContext,
    is_pin_counted: bool,
    client_ended: bool,
}

/// Result of a step of the relay.
enum RelayStep {
    Continue,
    /// The client is done.
    ClientLeft,
    /// The backend is gone or unavailable; the client has got the reason.
    BackendLost,
}

impl PostgresRelay {
    pub(super) fn new(
        client: PostgresConnection<ClientStream>,
        client_state: PostgresClientState,
        cancel_registration: CancelRegistration,
        state: Rc<PostgresState>,
        context: ClientContext,
    ) -> Self {
        let mode = context.upstream.destination.egress.mode;
        let mut session = PostgresSession::new(mode, client_state.parameters.clone());
        client_state
            .pin_reason(mode)
            .into_iter()
            .for_each(|reason| session.set_pin(reason));
        let mut relay = Self {
            client,
            client_state,
            session,
            cancel_registration,
            state,
            context,
            is_pin_counted: false,
            client_ended: false,
        };
        // The backend of the login may be free already: in transaction mode other clients can use
        // it.
        relay.release_idle();
        if let Some(kept) = relay.client_state.backend.take() {
            relay.attach_backend(kept, None);
        }
        relay
    }

    /// Serves the client until it leaves.
    ///
    /// # Errors
    /// Fails when the client's connection breaks.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            let step = match self.process().await {
                Ok(RelayStep::Continue) => self.transfer().await?,
                Ok(step) => step,
                Err(error) => self.send_protocol_error(&error),
            };
            match step {
                RelayStep::Continue => {}
                RelayStep::ClientLeft => return Ok(()),
                RelayStep::BackendLost => return self.close_client().await,
            }
        }
    }

    /// Processes all input that has arrived.
    async fn process(&mut self) -> Result<RelayStep, PostgresProtocolError> {
        // The client's input comes first: it may end the wait for the backend's reply, as with
        // COPY.
        let step = self.process_input().await?;
        if let (Some(kept), false) = (&mut self.client_state.backend, self.client.is_full()) {
            let PostgresBackend {
                connection,
                state: backend_state,
                ..
            } = &mut kept.connection;
            self.session.handle_backend(
                &mut connection.incoming,
                backend_state,
                &mut self.client.outgoing,
            )?;
        }
        // Pins are noted before the release, which depends on them.
        self.count_pin();
        self.release_idle();
        // A half-closed client still gets outstanding replies.
        let stuck = self.session.awaits_client() || !self.client.incoming.is_between_messages();
        let done = self.client_ended
            && (stuck || (self.session.is_quiet() && self.client.outgoing.is_empty()));
        Ok(if done && matches!(step, RelayStep::Continue) {
            RelayStep::ClientLeft
        } else {
            step
        })
    }

    /// Processes the client's messages.
    async fn process_input(&mut self) -> Result<RelayStep, PostgresProtocolError> {
        while !self.session.is_backlogged() && !self.is_full() {
            let Some(piece) = self.client.incoming.next_piece()? else {
                break;
            };
            // Terminate ends the client's session, not the backend's.
            if matches!(&piece, MessagePiece::Whole(message) if message[0] == b'X') {
                return Ok(RelayStep::ClientLeft);
            }
            if self.client_state.backend.is_none() {
                if !self.session.needs_backend(&piece) {
                    self.session
                        .answer_locally(piece, &mut self.client.outgoing);
                    continue;
                }
                match self.acquire_backend(&piece).await {
                    RelayStep::Continue => {}
                    step => return Ok(step),
                }
            }
            let kept = self
                .client_state
                .backend
                .as_mut()
                .expect("it has just been attached");
            let PostgresBackend {
                connection,
                state: backend_state,
                ..
            } = &mut kept.connection;
            let names = &self.state.statement_names;
            let outputs = &mut SessionOutputs {
                to_backend: &mut connection.outgoing,
                to_client: &mut self.client.outgoing,
                names,
            };
            self.session.handle_client(piece, backend_state, outputs)?;
        }
        Ok(RelayStep::Continue)
    }

    fn is_full(&self) -> bool {
        // Both directions count: a full side stops the reading of the other one.
        self.client.is_full()
            || self
                .client_state
                .backend
                .as_ref()
                .is_some_and(|kept| kept.connection.connection.is_full())
    }

    /// Acquires a backend for the message `first`. A client that hangs up meanwhile waits no
    /// longer.
    async fn acquire_backend(&mut self, first: &MessagePiece) -> RelayStep {
        let deadline = Instant::now() + self.context.upstream.destination.egress.wait;
        let found = {
            let client = &mut self.client;
            let mut finding = std::pin::pin!(self.client_state.acquire_backend(
                &self.context,
                &self.state,
                deadline
            ));
            poll_fn(|cx| {
                if let Poll::Ready(found) = finding.as_mut().poll(cx) {
                    return Poll::Ready(Some(found));
                }
                // Earlier output is still written meanwhile; further input is only buffered.
                while let Poll::Ready(Ok(_)) = client.poll_drain(cx) {}
                loop {
                    match client.poll_fill(cx) {
                        Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(None),
                        Poll::Ready(Ok(_)) => {}
                        Poll::Pending => return Poll::Pending,
                    }
                }
            })
            .await
        };
        match found {
            None => RelayStep::ClientLeft,
            Some(Err(error)) => {
                tracing::debug!(function = %self.context.caller.function, to = self.context.upstream.destination.key.host_port, %error, "PostgreSQL adapter: no backend");
                error.count_refusal(&self.context.upstream.counters);
                self.client.outgoing.extend_from_slice(
                    &error.to_message(&self.context.upstream.destination.key.host_port),
                );
                RelayStep::BackendLost
            }
            Some(Ok(kept)) => {
                self.attach_backend(kept, Some(first));
                RelayStep::Continue
            }
        }
    }

    fn attach_backend(
        &mut self,
        mut kept: UsedConnection<PostgresBackend>,
        first: Option<&MessagePiece>,
    ) {
        self.session
            .report_server_parameters(&kept.connection.state, &mut self.client.outgoing);
        self.session.restore_settings(
            first,
            &mut kept.connection.state,
            &mut kept.connection.connection.outgoing,
        );
        self.cancel_registration
            .set_target(Some(kept.connection.cancel_target()));
        self.client_state.backend = Some(kept);
    }

    /// Releases the backend when nothing binds it to this client.
    fn release_idle(&mut self) {
        let Some(kept) = &self.client_state.backend else {
            return;
        };
        let free = self.session.pin().is_none()
            && self.session.is_free(&kept.connection.state)
            && kept.connection.is_drained();
        if free && self.client.incoming.is_between_messages() {
            let kept = self.client_state.backend.take().expect("checked above");
            self.cancel_registration.set_target(None);
            self.release_backend(kept, false);
        }
    }

    fn release_backend(&self, mut kept: UsedConnection<PostgresBackend>, used_up: bool) {
        // The idle time starts here, and decides whether the next user probes the backend.
        kept.connection.idle_since = Instant::now();
        let (state, context, fingerprint) = (
            self.state.clone(),
            self.context.clone(),
            self.client_state.fingerprint.clone(),
        );
        // A proof for one session: no other client can use this backend.
        if !fingerprint.is_reusable() {
            return kept.connection.close();
        }
        // Cleaning waits for cancellations in flight; without them and without state it is skipped.
        if !used_up
            && !kept.connection.state.needs_cleaning
            && !kept.connection.cancels_in_flight.are_in_flight()
        {
            return state
                .idle_pool
                .give_back(&context.upstream, &fingerprint, kept);
        }
        // In a task of its own: the client must not wait for the cleanup.
        tokio::task::spawn_local(async move {
            let (backend, opened_at) = kept.into_parts();
            if let Some(backend) = backend.clean_session().await {
                DestinationCounters::increase(&context.upstream.counters.resets, 1);
                state.idle_pool.give_back(
                    &context.upstream,
                    &fingerprint,
                    UsedConnection::new(backend, opened_at),
                );
            }
        });
    }

    fn count_pin(&mut self) {
        // In session mode every client keeps its backend, so that pin is nothing worth counting.
        if let Some(reason) = self.session.pin()
            && !std::mem::replace(&mut self.is_pin_counted, true)
            && reason != "session mode"
        {
            self.context.upstream.counters.count_pin(reason);
        }
    }

    /// Moves bytes; waits until some have moved.
    async fn transfer(&mut self) -> io::Result<RelayStep> {
        let (client, ended) = (&mut self.client, &mut self.client_ended);
        let mut backend = self
            .client_state
            .backend
            .as_mut()
            .map(|kept| &mut kept.connection.connection);
        let counters = &self.context.upstream.counters;
        poll_fn(|cx| {
            let mut moved = false;
            if let Poll::Ready(drained) = client.poll_drain(cx) {
                drained?;
                moved = true;
            }
            let crowded = backend
                .as_ref()
                .is_some_and(|connection| connection.is_full());
            if !*ended
                && !crowded
                && let Poll::Ready(filled) = client.poll_fill(cx)
            {
                *ended = filled? == 0;
                moved = true;
            }
            if let Some(connection) = backend.as_mut() {
                match connection.poll_drain(cx) {
                    Poll::Ready(Ok(sent)) => {
                        DestinationCounters::increase(&counters.sent_bytes, sent as u64);
                        moved = true;
                    }
                    // The backend's last message is read before its end is handled.
                    Poll::Ready(Err(_)) => connection.outgoing.clear(),
                    Poll::Pending => {}
                }
                if !client.is_full()
                    && let Poll::Ready(filled) = connection.poll_fill(cx)
                {
                    match filled {
                        Ok(count @ 1..) => {
                            DestinationCounters::increase(&counters.received_bytes, count as u64)
                        }
                        // An error of the backend's socket is not the client's: the client gets
                        // what has arrived, and its connection closes properly.
                        Ok(0) | Err(_) => return Poll::Ready(Ok(RelayStep::BackendLost)),
                    }
                    moved = true;
                }
            }
            if moved {
                Poll::Ready(Ok(RelayStep::Continue))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Handles a protocol violation: the client gets the error, and both connections are closed.
    fn send_protocol_error(&mut self, error: &PostgresProtocolError) -> RelayStep {
        let to = &self.context.upstream.destination.key.host_port;
        tracing::warn!(function = %self.context.caller.function, to, %error, "PostgreSQL adapter: protocol violation, closing both connections");
        self.client
            .outgoing
            .extend_from_slice(&message::fatal_error(
                sqlstate::PROTOCOL_VIOLATION,
                &format!("nearpath: {error}"),
                "",
            ));
        self.client_state
            .backend
            .take()
            .into_iter()
            .for_each(|kept| kept.connection.close_abruptly());
        RelayStep::BackendLost
    }

    /// Writes the last message. Further input is read and dropped: closing a socket with unread
    /// input resets it, which would lose the output.
    async fn close_client(&mut self) -> io::Result<()> {
        let closing = async {
            self.client.flush().await?;
            self.client.stream.shutdown().await?;
            let mut rest = [0; 4096];
            while self.client.stream.read(&mut rest).await? > 0 {}
            Ok(())
        };
        tokio::time::timeout(CLOSE_GRACE, closing)
            .await
            .unwrap_or(Ok(()))
    }

    /// Detaches the client from its backend. A backend in order is cleaned for the next client, any
    /// other is closed.
    fn detach_backend(&mut self) {
        let Some(kept) = self.client_state.backend.take() else {
            return;
        };
        self.cancel_registration.set_target(None);
        // Status 0: the server has announced the end of the session.
        let in_order = self.session.is_quiet()
            && kept.connection.state.status != 0
            && kept.connection.is_drained();
        match (in_order, self.client.incoming.is_between_messages()) {
            (true, true) => self.release_backend(kept, true),
            (_, true) => kept.connection.close(),
            // Terminate is a message; within another one the server would read it as its content.
            (_, false) => kept.connection.close_abruptly(),
        }
    }
}

/// Runs also when the task is dropped because its instance has ended.
impl Drop for PostgresRelay {
    fn drop(&mut self) {
        self.detach_backend();
    }
}
