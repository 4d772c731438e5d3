//! One client from its first words to its last: bytes both ways, and a backend for as long as it needs one.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::backend::PostgresBackend;
use super::cancel::CancelRegistration;
use super::connection::PostgresConnection;
use super::frame::MessagePiece;
use super::handshake::PostgresClientState;
use super::message::{self, sqlstate};
use super::session::{PostgresProtocolError, PostgresSession, SessionOutputs};
use super::state::PostgresState;
use crate::ClientContext;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::{ReusableConnection, UsedConnection};

/// Longest wait for a client to take what it is told last.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// A client that is in, and what it has.
pub(super) struct PostgresRelay {
    client: PostgresConnection<TcpStream>,
    client_state: PostgresClientState,
    session: PostgresSession,
    cancel_registration: CancelRegistration,
    state: Rc<PostgresState>,
    context: ClientContext,
    is_pin_counted: bool,
    client_ended: bool,
}

/// How a visit goes on.
enum RelayStep {
    Continue,
    /// The client is done.
    ClientLeft,
    /// Its backend is gone, or cannot be had: it has been told.
    BackendLost,
}

impl PostgresRelay {
    pub(super) fn new(
        client: PostgresConnection<TcpStream>,
        guest: PostgresClientState,
        seat: CancelRegistration,
        room: Rc<PostgresState>,
        visit: ClientContext,
    ) -> Self {
        let mode = visit.upstream.destination.egress.mode;
        let mut talk = PostgresSession::new(mode, guest.parameters.clone());
        guest
            .pin_reason(mode)
            .into_iter()
            .for_each(|why| talk.set_pin(why));
        let mut visitor = Self {
            client,
            client_state: guest,
            session: talk,
            cancel_registration: seat,
            state: room,
            context: visit,
            is_pin_counted: false,
            client_ended: false,
        };
        visitor.release_idle();
        if let Some(kept) = visitor.client_state.backend.take() {
            visitor.attach_backend(kept, None);
        }
        visitor
    }

    /// Serves the client until it leaves.
    ///
    /// # Errors
    /// When its connection breaks.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            let course = match self.process().await {
                Ok(RelayStep::Continue) => self.transfer().await?,
                Ok(course) => course,
                Err(odd) => self.send_protocol_error(&odd),
            };
            match course {
                RelayStep::Continue => {}
                RelayStep::ClientLeft => return Ok(()),
                RelayStep::BackendLost => return self.close_client().await,
            }
        }
    }

    /// Deals with all that came.
    async fn process(&mut self) -> Result<RelayStep, PostgresProtocolError> {
        let heard = self.process_input().await?;
        if let (Some(kept), false) = (&mut self.client_state.backend, self.client.is_full()) {
            let PostgresBackend {
                connection: line,
                state: facts,
                ..
            } = &mut kept.connection;
            self.session
                .handle_backend(&mut line.incoming, facts, &mut self.client.outgoing)?;
        }
        self.count_pin();
        self.release_idle();
        // Who has said its last word still hears the replies.
        let stuck = self.session.awaits_client() || !self.client.incoming.is_between_messages();
        let done = self.client_ended
            && (stuck || (self.session.is_quiet() && self.client.outgoing.is_empty()));
        Ok(if done && matches!(heard, RelayStep::Continue) {
            RelayStep::ClientLeft
        } else {
            heard
        })
    }

    /// Passes on what the client said.
    async fn process_input(&mut self) -> Result<RelayStep, PostgresProtocolError> {
        while !self.session.is_backlogged() && !self.is_full() {
            let Some(piece) = self.client.incoming.next_piece()? else {
                break;
            };
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
                    course => return Ok(course),
                }
            }
            let kept = self
                .client_state
                .backend
                .as_mut()
                .expect("it has just been attached");
            let PostgresBackend {
                connection: line,
                state: facts,
                ..
            } = &mut kept.connection;
            let names = &self.state.statement_names;
            let ways = &mut SessionOutputs {
                to_backend: &mut line.outgoing,
                to_client: &mut self.client.outgoing,
                names,
            };
            self.session.handle_client(piece, facts, ways)?;
        }
        Ok(RelayStep::Continue)
    }

    fn is_full(&self) -> bool {
        self.client.is_full()
            || self
                .client_state
                .backend
                .as_ref()
                .is_some_and(|kept| kept.connection.connection.is_full())
    }

    /// Gets a backend for what begins with `first`. A client that hangs up meanwhile waits no longer.
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
                // What was said to it before is not kept back, what it says more can wait.
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
            Some(Err(unfit)) => {
                tracing::debug!(function = %self.context.caller.function, to = self.context.upstream.destination.key.host_port, %unfit, "no backend");
                unfit.count_refusal(&self.context.upstream.counters);
                self.client.outgoing.extend_from_slice(
                    &unfit.to_message(&self.context.upstream.destination.key.host_port),
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
        self.session.restore_settings(
            first,
            &mut kept.connection.state,
            &mut kept.connection.connection.outgoing,
        );
        self.cancel_registration.set_backend(Some(&kept.connection));
        self.client_state.backend = Some(kept);
    }

    /// Gives the backend back when nothing binds it to this client.
    fn release_idle(&mut self) {
        let Some(kept) = &self.client_state.backend else {
            return;
        };
        let free = self.session.pin().is_none()
            && self.session.is_free(&kept.connection.state)
            && kept.connection.is_drained();
        if free && self.client.incoming.is_between_messages() {
            let kept = self.client_state.backend.take().expect("it is there");
            self.cancel_registration.set_backend(None);
            self.release_backend(kept, false);
        }
    }

    fn release_backend(&self, mut kept: UsedConnection<PostgresBackend>, used_up: bool) {
        kept.connection.idle_since = Instant::now();
        let (room, visit, fingerprint) = (
            self.state.clone(),
            self.context.clone(),
            self.client_state.fingerprint.clone(),
        );
        if !fingerprint.is_reusable() {
            return kept.connection.close();
        }
        if !used_up
            && !kept.connection.state.needs_cleaning
            && !kept.connection.cancels_in_flight.are_in_flight()
        {
            return room
                .idle_pool
                .give_back(&visit.upstream, &fingerprint, kept);
        }
        tokio::task::spawn_local(async move {
            let (backend, born) = kept.into_parts();
            if let Some(backend) = backend.clean_session().await {
                DestinationCounters::increase(&visit.upstream.counters.resets, 1);
                room.idle_pool.give_back(
                    &visit.upstream,
                    &fingerprint,
                    UsedConnection::new(backend, born),
                );
            }
        });
    }

    fn count_pin(&mut self) {
        if let Some(why) = self.session.pin()
            && !std::mem::replace(&mut self.is_pin_counted, true)
            && why != "session mode"
        {
            self.context.upstream.counters.count_pin(why);
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
        let ledger = &self.context.upstream.counters;
        poll_fn(|cx| {
            let mut moved = false;
            if let Poll::Ready(drained) = client.poll_drain(cx) {
                drained?;
                moved = true;
            }
            let crowded = backend.as_ref().is_some_and(|line| line.is_full());
            if !*ended
                && !crowded
                && let Poll::Ready(filled) = client.poll_fill(cx)
            {
                *ended = filled? == 0;
                moved = true;
            }
            if let Some(line) = backend.as_mut() {
                match line.poll_drain(cx) {
                    Poll::Ready(Ok(sent)) => {
                        DestinationCounters::increase(&ledger.sent_bytes, sent as u64);
                        moved = true;
                    }
                    // What it said before it went is read first.
                    Poll::Ready(Err(_)) => line.outgoing.clear(),
                    Poll::Pending => {}
                }
                if !client.is_full()
                    && let Poll::Ready(filled) = line.poll_fill(cx)
                {
                    match filled {
                        Ok(count @ 1..) => {
                            DestinationCounters::increase(&ledger.received_bytes, count as u64)
                        }
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

    /// Somebody does not keep to the protocol: the client hears it, and both are closed.
    fn send_protocol_error(&mut self, odd: &PostgresProtocolError) -> RelayStep {
        let to = &self.context.upstream.destination.key.host_port;
        tracing::warn!(function = %self.context.caller.function, to, %odd, "a conversation that is not PostgreSQL's");
        self.client
            .outgoing
            .extend_from_slice(&message::fatal_error(
                sqlstate::PROTOCOL_VIOLATION,
                &format!("nearpath: {odd}"),
                "",
            ));
        self.client_state
            .backend
            .take()
            .into_iter()
            .for_each(|kept| kept.connection.close_abruptly());
        RelayStep::BackendLost
    }

    /// Says the last words. What the client still sends is read, for a connection that is closed with something unread loses what was written.
    async fn close_client(&mut self) -> io::Result<()> {
        let last_words = async {
            self.client.flush().await?;
            self.client.stream.shutdown().await?;
            let mut rest = [0; 4096];
            while self.client.stream.read(&mut rest).await? > 0 {}
            Ok(())
        };
        tokio::time::timeout(CLOSE_GRACE, last_words)
            .await
            .unwrap_or(Ok(()))
    }

    /// Ends the client's hold on its backend. One that is in order is cleaned for the next client, any other is closed.
    fn detach_backend(&mut self) {
        let Some(kept) = self.client_state.backend.take() else {
            return;
        };
        self.cancel_registration.set_backend(None);
        let in_order = self.session.is_quiet()
            && kept.connection.state.status != 0
            && kept.connection.is_drained();
        match (in_order, self.client.incoming.is_between_messages()) {
            (true, true) => self.release_backend(kept, true),
            (_, true) => kept.connection.close(),
            (_, false) => kept.connection.close_abruptly(),
        }
    }
}

/// Also when its task is ended from outside, because its instance has ended.
impl Drop for PostgresRelay {
    fn drop(&mut self) {
        self.detach_backend();
    }
}
