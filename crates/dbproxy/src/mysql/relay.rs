//! Moves one client's commands to its backend, and the replies back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use nearpath_types::egress::{EgressSpec, PoolingMode};
use tokio::net::TcpStream;

use super::MysqlState;
use super::backend::{CLEAN_TIMEOUT, MysqlBackendError, PasswordSource};
use super::connection::not_mysql_error;
use super::frame::{MysqlFramer, encode_packet};
use super::handshake::{MysqlClientState, acquire_backend, error_packet, node_password};
use super::session::MysqlSession;
use super::session_effect::{self, MysqlSessionEffect};
use crate::ClientContext;
use crate::relay::{poll_drain, poll_fill};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::ReusableConnection;

/// As much may wait to be written before no more is read.
const MAX_BUFFERED_BYTES: usize = 256 * 1024;
/// What a server takes an empty payload for.
const COM_SLEEP: u8 = 0;
const COM_QUIT: u8 = 1;
const COM_INIT_DB: u8 = 2;
const COM_QUERY: u8 = 3;
const COM_STATISTICS: u8 = 9;
const COM_PING: u8 = 14;
const COM_STMT_PREPARE: u8 = 22;
/// A statement longer than this is not looked at.
const MAX_CLASSIFIED_BYTES: usize = 64 * 1024;
/// Settings of one client that are made again at most.
const MAX_SETTINGS: usize = 16;

pub(super) struct MysqlRelay {
    client: TcpStream,
    context: ClientContext,
    state: Rc<MysqlState>,
    client_state: MysqlClientState,
    session: MysqlSession,
    input: BytesMut,
    /// Of the client.
    commands: MysqlFramer,
    /// Of the backend.
    replies: MysqlFramer,
    to_backend: BytesMut,
    to_client: BytesMut,
    /// The client will say no more.
    client_ended: bool,
    /// Whatever it says, it is not heard any more.
    is_closing: bool,
    /// Why the client keeps its backend.
    pin: Option<&'static str>,
    /// It has asked for more than settings.
    has_queried: bool,
    /// A setting that is on its way, with what has come of its reply. Nothing else is sent meanwhile.
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

    /// Until the client leaves, or is sent away.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            self.process_input().await;
            self.release_backend();
            if self.to_client.is_empty() && (self.is_closing || self.client_ended) {
                return Ok(());
            }
            poll_fn(|cx| self.poll_transfer(cx)).await?;
        }
    }

    /// Takes all that is here.
    async fn process_input(&mut self) {
        while !self.is_closing
            && !self.input.is_empty()
            && self.to_backend.len() < MAX_BUFFERED_BYTES
        {
            if self.session.opaque_reason().is_some() {
                self.to_backend.unsplit(self.input.split());
                return;
            }
            if self.commands.is_between_packets() && !self.begin_packet().await {
                return;
            }
            let (used, packet) = self.commands.step(&self.input);
            if packet.is_some_and(|packet| packet.length == 0) {
                self.session.finish_file();
            }
            self.to_backend.unsplit(self.input.split_to(used));
        }
    }

    /// Looks at a packet's beginning; whether it may go on.
    async fn begin_packet(&mut self) -> bool {
        if self.session.expects_file() {
            return self.input.len() >= 4;
        }
        let Some(command) = self.next_command() else {
            return false;
        };
        if command == COM_QUIT {
            self.is_closing = true;
            return false;
        }
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
        if let Some(why) = self.session.opaque_reason() {
            self.context.upstream.counters.count_pin(why);
        }
        true
    }

    /// The first byte of a packet's payload, once it is here.
    fn next_command(&self) -> Option<u8> {
        let header = self.input.first_chunk::<4>()?;
        if header[..3] == [0; 3] {
            Some(COM_SLEEP)
        } else {
            self.input.get(4).copied()
        }
    }

    /// Whether it matters what a command leaves. Where the node does not log in, it could not make another connection that is the same; a client that
    /// keeps its backend may do what it likes as soon as it has begun.
    fn is_classified(&self) -> bool {
        let EgressSpec { mode, login, .. } = &self.context.upstream.destination.egress;
        login.is_some()
            && self.pin.is_none()
            && (*mode == PoolingMode::Transaction || !self.has_queried)
    }

    /// Looks at what a command leaves; whether it is to be sent.
    fn classify_command(&mut self, command: u8) -> bool {
        let length = usize::from(self.input[0])
            | usize::from(self.input[1]) << 8
            | usize::from(self.input[2]) << 16;
        let kind = match command {
            COM_QUERY if length > MAX_CLASSIFIED_BYTES => {
                MysqlSessionEffect::Pins("a long statement")
            }
            COM_QUERY if self.input.len() < 4 + length => return false,
            COM_QUERY => session_effect::classify_statement(&self.input[5..4 + length]),
            COM_PING | COM_STATISTICS => MysqlSessionEffect::Nothing,
            COM_INIT_DB => MysqlSessionEffect::Pins("another database"),
            COM_STMT_PREPARE => MysqlSessionEffect::Pins("a prepared statement"),
            _ => MysqlSessionEffect::Pins("an unusual command"),
        };
        match kind {
            MysqlSessionEffect::Setting => return self.handle_setting(length),
            MysqlSessionEffect::Pins(why) => self.pin_backend(why),
            MysqlSessionEffect::Nothing => {}
        }
        self.has_queried = true;
        true
    }

    /// A setting: its answer is known, or it is sent and remembered.
    fn handle_setting(&mut self, length: usize) -> bool {
        if !self.session.is_quiet() || self.client_state.settings.len() >= MAX_SETTINGS {
            self.pin_backend("SET");
            return true;
        }
        let text = self.input[5..4 + length].to_vec();
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

    /// Something of the client stays in its backend.
    fn pin_backend(&mut self, why: &'static str) {
        if self.pin.is_none() {
            self.pin = Some(why);
            if self.context.upstream.destination.egress.mode == PoolingMode::Transaction {
                self.context.upstream.counters.count_pin(why);
            }
        }
    }

    /// In mode `transaction`, gives the backend back as soon as nothing of the client is in it.
    fn release_backend(&mut self) {
        if let Some(why) = self.session.residue() {
            self.pin_backend(why);
        }
        let EgressSpec {
            mode: PoolingMode::Transaction,
            login: Some(_),
            ..
        } = &self.context.upstream.destination.egress
        else {
            return;
        };
        let whole = self.commands.is_between_packets()
            && self.replies.is_between_packets()
            && self.to_backend.is_empty();
        if self.pin.is_some()
            || self.pending_setting.is_some()
            || !whole
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

    /// Sees to it that there is a backend. If not, the client knows why, and is sent away.
    async fn ensure_attached(&mut self) -> bool {
        match acquire_backend(&self.client_state, &self.context, &self.state, None).await {
            Ok(backend) => {
                self.client_state.backend = Some(backend);
                true
            }
            Err(unfit) => {
                self.state.forget();
                self.is_closing = true;
                self.to_client
                    .extend(encode_packet(1, &error_packet(&unfit, Some("08S01"))));
                false
            }
        }
    }

    /// The client has left: what it left behind is removed, or goes with its backend.
    pub(super) async fn finish(mut self) {
        let fingerprint = self.client_state.fingerprint(&self.context);
        let whole = self.commands.is_between_packets()
            && self.replies.is_between_packets()
            && self.to_backend.is_empty();
        // The client need not wait for what happens to its backend.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.client).await;
        let Some(mut backend) = self.client_state.backend.take() else {
            return;
        };
        if !self.session.is_quiet() || !whole || !backend.connection.is_quiet() {
            return backend.connection.close();
        }
        let login = self.context.upstream.destination.egress.login.is_some();
        let password = node_password(&self.context);
        let cleaning = async {
            match login {
                true => {
                    backend
                        .connection
                        .change_user(
                            &self.client_state.login,
                            &mut PasswordSource::Node(&password),
                        )
                        .await?;
                    // The next client of the same function will set the same.
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
                if let Ok(Err(MysqlBackendError::Refused(_) | MysqlBackendError::AuthFailed(_))) =
                    other
                {
                    self.state.forget();
                }
                backend.connection.close();
            }
        }
    }

    /// Moves what can be moved now.
    fn poll_transfer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        if !self.to_client.is_empty() {
            moved |= poll_drain(&mut self.client, cx, &mut self.to_client)?.is_ready();
        }
        if let Some(backend) = &mut self.client_state.backend {
            let socket = &mut backend.connection.socket;
            if !self.to_backend.is_empty()
                && let Poll::Ready(count) = poll_drain(socket, cx, &mut self.to_backend)?
            {
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
        let room = !self.client_ended
            && !self.is_closing
            && self.input.len() < MAX_BUFFERED_BYTES
            && self.to_backend.len() < MAX_BUFFERED_BYTES;
        if room && let Poll::Ready(count) = poll_fill(&mut self.client, cx, &mut self.input)? {
            self.client_ended = count == 0;
            moved = true;
        }
        if moved {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// The backend said something, which is in the client's buffer already.
    fn handle_received(&mut self, before: usize, count: usize) -> io::Result<()> {
        DestinationCounters::increase(&self.context.upstream.counters.received_bytes, count as u64);
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
                // A server says by itself that it ends the connection: that goes on, and is the end.
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

    /// The server has answered a setting.
    fn learn_setting(&mut self) {
        let Some((text, reply)) = self.pending_setting.take_if(|_| self.session.is_quiet()) else {
            return;
        };
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
