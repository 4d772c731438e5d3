//! Relay of one client's commands to its backend, and of the replies back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use nearpath_types::egress::{EgressSpec, PoolingMode};
use tokio::net::TcpStream;

use super::backend::{CLEAN_TIMEOUT, MysqlBackendError, PasswordSource};
use super::connection::not_mysql_error;
use super::frame::{MysqlFramer, encode_packet};
use super::handshake::{MysqlClientState, acquire_backend, error_packet, node_password};
use super::session::MysqlSession;
use super::session_effect::{self, MysqlSessionEffect};
use super::state::MysqlState;
use crate::ClientContext;
use crate::relay::{poll_drain, poll_fill};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::ReusableConnection;

/// Bytes that may wait to be written before no more is read: backpressure for both sides.
const MAX_BUFFERED_BYTES: usize = 256 * 1024;
/// The command that a server reads from an empty payload.
const COM_SLEEP: u8 = 0;
const COM_QUIT: u8 = 1;
const COM_INIT_DB: u8 = 2;
const COM_QUERY: u8 = 3;
const COM_STATISTICS: u8 = 9;
const COM_PING: u8 = 14;
const COM_CHANGE_USER: u8 = 17;
const COM_STMT_PREPARE: u8 = 22;
/// The longest statement that is classified.
const MAX_CLASSIFIED_BYTES: usize = 64 * 1024;
/// The number of settings that are repeated per client.
const MAX_SETTINGS: usize = 16;

pub(super) struct MysqlRelay {
    client: TcpStream,
    pub(super) context: ClientContext,
    pub(super) state: Rc<MysqlState>,
    pub(super) client_state: MysqlClientState,
    pub(super) session: MysqlSession,
    pub(super) input: BytesMut,
    /// Framer of the client's packets.
    commands: MysqlFramer,
    /// Framer of the backend's packets.
    replies: MysqlFramer,
    to_backend: BytesMut,
    pub(super) to_client: BytesMut,
    /// The client has closed its sending side.
    client_ended: bool,
    /// No further input is processed.
    pub(super) is_closing: bool,
    /// Reason why the client keeps its backend.
    pub(super) pin: Option<&'static str>,
    /// The client has sent more than settings.
    pub(super) has_queried: bool,
    /// A setting in flight, with the part of its reply that has arrived. No other command is sent
    /// meanwhile.
    pending_setting: Option<(Vec<u8>, Vec<u8>)>,
}

impl MysqlRelay {
    pub(super) fn new(
        client: TcpStream,
        context: ClientContext,
        state: Rc<MysqlState>,
        client_state: MysqlClientState,
    ) -> Self {
        Self {
            client,
            context,
            state,
            session: MysqlSession::new(client_state.login.capabilities),
            client_state,
            input: BytesMut::new(),
            commands: MysqlFramer::default(),
            replies: MysqlFramer::default(),
            to_backend: BytesMut::new(),
            to_client: BytesMut::new(),
            client_ended: false,
            is_closing: false,
            pin: None,
            has_queried: false,
            pending_setting: None,
        }
    }

    /// Runs until the client leaves or is disconnected.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            self.process_input().await;
            // Released before waiting: an idle client must not hold a backend that others wait for.
            self.release_backend();
            if self.to_client.is_empty() && (self.is_closing || self.client_ended) {
                return Ok(());
            }
            poll_fn(|cx| self.poll_transfer(cx)).await?;
        }
    }

    /// Processes all input that has arrived.
    async fn process_input(&mut self) {
        while !self.is_closing
            && !self.input.is_empty()
            && self.to_backend.len() < MAX_BUFFERED_BYTES
        {
            // Unreadable traffic passes as raw bytes; the backend is closed with the client.
            if self.session.opaque_reason().is_some() {
                self.to_backend.unsplit(self.input.split());
                return;
            }
            // A command is classified at its first packet only; its further parts belong to the
            // same statement.
            if self.commands.is_between_packets() && !self.begin_packet().await {
                return;
            }
            let (used, packet) = self.commands.step(&self.input);
            // An empty packet ends a local file.
            if packet.is_some_and(|packet| packet.length == 0) {
                self.session.finish_file();
            }
            self.to_backend.unsplit(self.input.split_to(used));
        }
    }

    /// Handles the beginning of a packet. Returns whether the packet may be sent.
    async fn begin_packet(&mut self) -> bool {
        // Packets of a local file are data, whatever their first byte is.
        if self.session.expects_file() {
            return self.input.len() >= 4;
        }
        let Some(command) = self.next_command() else {
            return false;
        };
        // The backend stays open for the next client, so `COM_QUIT` must not reach it.
        if command == COM_QUIT {
            self.is_closing = true;
            return false;
        }
        if command == COM_CHANGE_USER && self.node_logs_in() {
            self.change_user(self.packet_length()).await;
            return false;
        }
        // The reply to the setting is captured. Replies to later commands would mix with it.
        if self.pending_setting.is_some() {
            return false;
        }
        if self.is_classified() && !self.classify_command(command) {
            return false;
        }
        if self.client_state.backend.is_none() && !self.ensure_attached().await {
            return false;
        }
        self.session.record_command(command);
        if let Some(reason) = self.session.opaque_reason() {
            self.context.upstream.counters.count_pin(reason);
        }
        true
    }

    /// Returns the first byte of a packet's payload, once it has arrived.
    fn next_command(&self) -> Option<u8> {
        let header = self.input.first_chunk::<4>()?;
        if header[..3] == [0; 3] {
            Some(COM_SLEEP)
        } else {
            self.input.get(4).copied()
        }
    }

    /// Returns the payload's length in bytes, of the first part. The header has arrived.
    fn packet_length(&self) -> usize {
        usize::from(self.input[0])
            | usize::from(self.input[1]) << 8
            | usize::from(self.input[2]) << 16
    }

    fn node_logs_in(&self) -> bool {
        self.context.upstream.destination.egress.login.is_some()
    }

    /// Returns whether no command, reply or setting is on its way. Half a packet would reach the
    /// next client.
    pub(super) fn is_between_commands(&self) -> bool {
        self.session.is_quiet()
            && self.commands.is_between_packets()
            && self.replies.is_between_packets()
            && self.to_backend.is_empty()
            && self.pending_setting.is_none()
    }

    /// Returns whether the effect of a command matters. Without a login of the node's, no other
    /// connection could be made equal. A client in session mode keeps its backend once it has sent
    /// a statement.
    fn is_classified(&self) -> bool {
        let mode = self.context.upstream.destination.egress.mode;
        self.node_logs_in()
            && self.pin.is_none()
            && (mode == PoolingMode::Transaction || !self.has_queried)
    }

    /// Classifies a command. Returns whether it may be sent.
    fn classify_command(&mut self, command: u8) -> bool {
        let length = self.packet_length();
        let effect = match command {
            COM_QUERY if length > MAX_CLASSIFIED_BYTES => {
                MysqlSessionEffect::Pins("a long statement")
            }
            // The decision needs the whole statement, so it waits for the rest.
            COM_QUERY if self.input.len() < 4 + length => return false,
            COM_QUERY => session_effect::classify_statement(&self.input[5..4 + length]),
            COM_PING | COM_STATISTICS => MysqlSessionEffect::Nothing,
            // The fingerprint holds the database of the login, and other clients of it expect that
            // one.
            COM_INIT_DB => MysqlSessionEffect::Pins("another database"),
            COM_STMT_PREPARE => MysqlSessionEffect::Pins("a prepared statement"),
            _ => MysqlSessionEffect::Pins("an unusual command"),
        };
        match effect {
            MysqlSessionEffect::Setting => return self.handle_setting(length),
            MysqlSessionEffect::Pins(reason) => self.pin_backend(reason),
            MysqlSessionEffect::Nothing => {}
        }
        self.has_queried = true;
        true
    }

    /// Handles a setting: its reply is known, or the setting is sent and remembered.
    fn handle_setting(&mut self, length: usize) -> bool {
        // Only between commands can the setting be matched with its reply.
        if !self.session.is_quiet() || self.client_state.settings.len() >= MAX_SETTINGS {
            self.pin_backend("SET");
            return true;
        }
        let text = self.input[5..4 + length].to_vec();
        // Without a backend the setting is only noted. The next backend gets it with its setup.
        if self.client_state.backend.is_none()
            && let Some(reply) = self
                .state
                .known_reply(&self.client_state.fingerprint(&self.context), &text)
        {
            let _ = self.input.split_to(4 + length);
            self.to_client.extend_from_slice(&reply);
            self.client_state.settings.push(text);
            return false;
        }
        self.pending_setting = Some((text, Vec::new()));
        true
    }

    /// Pins the backend to the client: it keeps state of the client.
    fn pin_backend(&mut self, reason: &'static str) {
        if self.pin.is_none() {
            self.pin = Some(reason);
            // In session mode every client keeps its backend, so a pin is nothing worth counting.
            if self.context.upstream.destination.egress.mode == PoolingMode::Transaction {
                self.context.upstream.counters.count_pin(reason);
            }
        }
    }

    /// In mode `transaction`, releases the backend as soon as nothing of the client is left in it.
    fn release_backend(&mut self) {
        if let Some(reason) = self.session.residue() {
            self.pin_backend(reason);
        }
        let EgressSpec {
            mode: PoolingMode::Transaction,
            login: Some(_),
            ..
        } = &self.context.upstream.destination.egress
        else {
            return;
        };
        if self.pin.is_some()
            || !self.is_between_commands()
            || !self.session.is_free()
            || self.is_closing
        {
            return;
        }
        if let Some(backend) = self.client_state.backend.take() {
            self.state.idle_pool.give_back(
                &self.context.upstream,
                &self.client_state.fingerprint(&self.context),
                backend,
            );
        }
    }

    /// Attaches a backend. On failure the client gets an error and is disconnected.
    pub(super) async fn ensure_attached(&mut self) -> bool {
        match acquire_backend(&self.client_state, &self.context, &self.state, None).await {
            Ok(backend) => {
                self.client_state.backend = Some(backend);
                true
            }
            Err(error) => {
                self.state.forget();
                self.is_closing = true;
                self.to_client
                    .extend(encode_packet(1, &error_packet(&error, Some("08S01"))));
                false
            }
        }
    }

    /// Cleans up after a client that has left: its backend is cleaned, or closed.
    pub(super) async fn finish(mut self) {
        let fingerprint = self.client_state.fingerprint(&self.context);
        let whole = self.commands.is_between_packets()
            && self.replies.is_between_packets()
            && self.to_backend.is_empty();
        // The client's socket is closed first, so that the client does not wait for the cleanup.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.client).await;
        let Some(mut backend) = self.client_state.backend.take() else {
            return;
        };
        // A backend with outstanding replies cannot be cleaned: they would be taken for the replies
        // to the reset.
        if !self.session.is_quiet() || !whole || !backend.connection.is_quiet() {
            return backend.connection.close();
        }
        let login = self.context.upstream.destination.egress.login.is_some();
        let password = node_password(&self.context);
        let cleaning = async {
            match login {
                // With the node's password the session can be logged in anew. Without it the
                // session can only be reset.
                true => {
                    backend
                        .connection
                        .change_user(
                            &self.client_state.login,
                            &mut PasswordSource::Node(&password),
                        )
                        .await?;
                    // Clients of one function usually send the same settings, so the fingerprint
                    // keeps them.
                    backend
                        .connection
                        .apply_settings(&self.client_state.settings)
                        .await
                }
                false => backend.connection.reset_connection().await,
            }
        };
        match tokio::time::timeout(CLEAN_TIMEOUT, cleaning).await {
            Ok(Ok(())) => {
                DestinationCounters::increase(&self.context.upstream.counters.resets, 1);
                self.state
                    .idle_pool
                    .give_back(&self.context.upstream, &fingerprint, backend);
            }
            other => {
                // Accepted logins may have been revoked; the next client asks the server again.
                if let Ok(Err(MysqlBackendError::Refused(_) | MysqlBackendError::AuthFailed(_))) =
                    other
                {
                    self.state.forget();
                }
                backend.connection.close();
            }
        }
    }

    /// Moves the bytes that can be moved now.
    fn poll_transfer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        if !self.to_client.is_empty() {
            moved |= poll_drain(&mut self.client, cx, &mut self.to_client)?.is_ready();
        }
        if let Some(backend) = &mut self.client_state.backend {
            let socket = &mut backend.connection.socket;
            if let Poll::Ready(count) = poll_drain(socket, cx, &mut self.to_backend)? {
                DestinationCounters::increase(
                    &self.context.upstream.counters.sent_bytes,
                    count as u64,
                );
                moved = true;
            }
            if self.to_client.len() < MAX_BUFFERED_BYTES && !self.is_closing {
                let before = self.to_client.len();
                if let Poll::Ready(count) = poll_fill(socket, cx, &mut self.to_client)? {
                    self.handle_received(before, count)?;
                    moved = true;
                }
            }
        }
        let can_read = !self.client_ended
            && !self.is_closing
            && self.input.len() < MAX_BUFFERED_BYTES
            && self.to_backend.len() < MAX_BUFFERED_BYTES;
        if can_read && let Poll::Ready(count) = poll_fill(&mut self.client, cx, &mut self.input)? {
            self.client_ended = count == 0;
            moved = true;
        }
        if moved {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Handles bytes of the backend, which are in the client's buffer already.
    fn handle_received(&mut self, before: usize, count: usize) -> io::Result<()> {
        DestinationCounters::increase(&self.context.upstream.counters.received_bytes, count as u64);
        // Bytes that preceded the end of file still go to the client.
        if count == 0 {
            self.is_closing = true;
            self.state.forget();
        }
        let mut at = before;
        while at < self.to_client.len() && self.session.opaque_reason().is_none() {
            let (used, packet) = self.replies.step(&self.to_client[at..]);
            if let Some((_, reply)) = &mut self.pending_setting {
                reply.extend_from_slice(&self.to_client[at..at + used]);
            }
            at += used;
            if let Some(packet) = packet {
                // A server announces by itself that it closes the connection. The announcement goes
                // to the client and is the last message.
                match self.session.handle_reply(&packet) {
                    Ok(()) => {}
                    Err(_) if packet.head.first() == Some(&0xff) => self.is_closing = true,
                    Err(_) => return Err(not_mysql_error()),
                }
            }
        }
        self.learn_setting();
        Ok(())
    }

    /// Remembers the server's reply to a setting.
    fn learn_setting(&mut self) {
        let Some((text, reply)) = self.pending_setting.take_if(|_| self.session.is_quiet()) else {
            return;
        };
        // Only an OK is remembered; a refusal may depend on data.
        if reply.get(4) == Some(&0) {
            self.state.learn_setting(
                self.client_state.fingerprint(&self.context),
                text.clone(),
                reply,
            );
            self.client_state.settings.push(text);
        }
    }
}
