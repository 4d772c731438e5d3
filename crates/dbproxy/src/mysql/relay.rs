//! Moves one client's commands to its backend, and the replies back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use nearpath_types::egress::{Egress, Mode};
use tokio::net::TcpStream;

use super::House;
use super::backend::{CLEANING, Prover, Unfit};
use super::connection::no_mysql;
use super::frame::{Packets, packet};
use super::handshake::{Guest, attach, line, password};
use super::session::Session;
use super::session_effect::{self, Kind};
use crate::Visit;
use crate::relay::{poll_drain, poll_fill};
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::Reused;

/// As much may wait to be written before no more is read.
const FULL: usize = 256 * 1024;
/// What a server takes an empty payload for.
const SLEEP: u8 = 0;
const QUIT: u8 = 1;
const INIT_DB: u8 = 2;
const QUERY: u8 = 3;
const STATISTICS: u8 = 9;
const PING: u8 = 14;
const PREPARE: u8 = 22;
/// A statement longer than this is not looked at.
const LONG: usize = 64 * 1024;
/// Settings of one client that are made again at most.
const SETTINGS: usize = 16;

pub(super) struct Relay {
    client: TcpStream,
    visit: Visit,
    house: Rc<House>,
    guest: Guest,
    session: Session,
    input: BytesMut,
    /// Of the client.
    commands: Packets,
    /// Of the backend.
    replies: Packets,
    to_backend: BytesMut,
    to_client: BytesMut,
    /// The client will say no more.
    ended: bool,
    /// Whatever it says, it is not heard any more.
    over: bool,
    /// Why the client keeps its backend.
    kept: Option<&'static str>,
    /// It has asked for more than settings.
    begun: bool,
    /// A setting that is on its way, with what has come of its reply. Nothing else is sent meanwhile.
    setting: Option<(Vec<u8>, Vec<u8>)>,
}

impl Relay {
    pub(super) fn new(client: TcpStream, visit: Visit, house: Rc<House>, guest: Guest) -> Self {
        Self {
            client,
            visit,
            house,
            session: Session::new(guest.answer.can),
            guest,
            input: BytesMut::new(),
            commands: Packets::default(),
            replies: Packets::default(),
            to_backend: BytesMut::new(),
            to_client: BytesMut::new(),
            ended: false,
            over: false,
            kept: None,
            begun: false,
            setting: None,
        }
    }

    /// Until the client leaves, or is sent away.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            self.understand().await;
            self.release();
            if self.to_client.is_empty() && (self.over || self.ended) {
                return Ok(());
            }
            poll_fn(|cx| self.poll_turn(cx)).await?;
        }
    }

    /// Takes all that is here.
    async fn understand(&mut self) {
        while !self.over && !self.input.is_empty() && self.to_backend.len() < FULL {
            if self.session.opaque().is_some() {
                self.to_backend.unsplit(self.input.split());
                return;
            }
            if self.commands.between() && !self.begin().await {
                return;
            }
            let (used, packet) = self.commands.step(&self.input);
            if packet.is_some_and(|packet| packet.length == 0) {
                self.session.file_ended();
            }
            self.to_backend.unsplit(self.input.split_to(used));
        }
    }

    /// Looks at a packet's beginning; whether it may go on.
    async fn begin(&mut self) -> bool {
        if self.session.takes_file() {
            return self.input.len() >= 4;
        }
        let Some(command) = self.next_command() else { return false };
        if command == QUIT {
            self.over = true;
            return false;
        }
        if self.setting.is_some() {
            return false;
        }
        if self.is_judged() && !self.judge(command) {
            return false;
        }
        if self.guest.backend.is_none() && !self.attached().await {
            return false;
        }
        self.session.sent(command);
        if let Some(why) = self.session.opaque() {
            self.visit.upstream.ledger.pinned(why);
        }
        true
    }

    /// The first byte of a packet's payload, once it is here.
    fn next_command(&self) -> Option<u8> {
        let header = self.input.first_chunk::<4>()?;
        if header[..3] == [0; 3] { Some(SLEEP) } else { self.input.get(4).copied() }
    }

    /// Whether it matters what a command leaves. Where the node does not log in, it could not make another connection that is the same; a client that
    /// keeps its backend may do what it likes as soon as it has begun.
    fn is_judged(&self) -> bool {
        let Egress { mode, login, .. } = &self.visit.upstream.destination.egress;
        login.is_some() && self.kept.is_none() && (*mode == Mode::Transaction || !self.begun)
    }

    /// Looks at what a command leaves; whether it is to be sent.
    fn judge(&mut self, command: u8) -> bool {
        let length = usize::from(self.input[0]) | usize::from(self.input[1]) << 8 | usize::from(self.input[2]) << 16;
        let kind = match command {
            QUERY if length > LONG => Kind::Something("a long statement"),
            QUERY if self.input.len() < 4 + length => return false,
            QUERY => session_effect::kind(&self.input[5..4 + length]),
            PING | STATISTICS => Kind::Nothing,
            INIT_DB => Kind::Something("another database"),
            PREPARE => Kind::Something("a prepared statement"),
            _ => Kind::Something("an unusual command"),
        };
        match kind {
            Kind::Setting => return self.set(length),
            Kind::Something(why) => self.keeps(why),
            Kind::Nothing => {}
        }
        self.begun = true;
        true
    }

    /// A setting: its answer is known, or it is sent and remembered.
    fn set(&mut self, length: usize) -> bool {
        if !self.session.quiet() || self.guest.settings.len() >= SETTINGS {
            self.keeps("SET");
            return true;
        }
        let text = self.input[5..4 + length].to_vec();
        if self.guest.backend.is_none()
            && let Some(reply) = self.house.recall(&self.guest.fingerprint(&self.visit), &text)
        {
            let _ = self.input.split_to(4 + length);
            self.to_client.extend_from_slice(&reply);
            self.guest.settings.push(text);
            return false;
        }
        self.setting = Some((text, Vec::new()));
        true
    }

    /// Something of the client stays in its backend.
    fn keeps(&mut self, why: &'static str) {
        if self.kept.is_none() {
            self.kept = Some(why);
            if self.visit.upstream.destination.egress.mode == Mode::Transaction {
                self.visit.upstream.ledger.pinned(why);
            }
        }
    }

    /// In mode `transaction`, gives the backend back as soon as nothing of the client is in it.
    fn release(&mut self) {
        if let Some(why) = self.session.left() {
            self.keeps(why);
        }
        let Egress { mode: Mode::Transaction, login: Some(_), .. } = &self.visit.upstream.destination.egress else {
            return;
        };
        let whole = self.commands.between() && self.replies.between() && self.to_backend.is_empty();
        if self.kept.is_some() || self.setting.is_some() || !whole || !self.session.is_free() || self.over {
            return;
        }
        if let Some(backend) = self.guest.backend.take() {
            self.house.bench.give_back(&self.visit.upstream, &self.guest.fingerprint(&self.visit), backend);
        }
    }

    /// Sees to it that there is a backend. If not, the client knows why, and is sent away.
    async fn attached(&mut self) -> bool {
        match attach(&self.guest, &self.visit, &self.house, None).await {
            Ok(backend) => {
                self.guest.backend = Some(backend);
                true
            }
            Err(unfit) => {
                self.house.forget();
                self.over = true;
                self.to_client.extend(packet(1, &line(&unfit, Some("08S01"))));
                false
            }
        }
    }

    /// The client has left: what it left behind is removed, or goes with its backend.
    pub(super) async fn leave(mut self) {
        let fingerprint = self.guest.fingerprint(&self.visit);
        let whole = self.commands.between() && self.replies.between() && self.to_backend.is_empty();
        // The client need not wait for what happens to its backend.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.client).await;
        let Some(mut backend) = self.guest.backend.take() else { return };
        if !self.session.quiet() || !whole || !backend.item.is_quiet() {
            return backend.item.close();
        }
        let login = self.visit.upstream.destination.egress.login.is_some();
        let password = password(&self.visit);
        let cleaning = async {
            match login {
                true => {
                    backend.item.change_user(&self.guest.answer, &mut Prover::Node(&password)).await?;
                    // The next client of the same function will set the same.
                    backend.item.apply(&self.guest.settings).await
                }
                false => backend.item.reset().await,
            }
        };
        match tokio::time::timeout(CLEANING, cleaning).await {
            Ok(Ok(())) => {
                Ledger::count(&self.visit.upstream.ledger.resets, 1);
                self.house.bench.give_back(&self.visit.upstream, &fingerprint, backend);
            }
            other => {
                if let Ok(Err(Unfit::Refused(_) | Unfit::Unproved(_))) = other {
                    self.house.forget();
                }
                backend.item.close();
            }
        }
    }

    /// Moves what can be moved now.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        if !self.to_client.is_empty() {
            moved |= poll_drain(&mut self.client, cx, &mut self.to_client)?.is_ready();
        }
        if let Some(backend) = &mut self.guest.backend {
            let socket = &mut backend.item.socket;
            if !self.to_backend.is_empty()
                && let Poll::Ready(count) = poll_drain(socket, cx, &mut self.to_backend)?
            {
                Ledger::count(&self.visit.upstream.ledger.sent, count as u64);
                moved = true;
            }
            if self.to_client.len() < FULL && !self.over {
                let before = self.to_client.len();
                if let Poll::Ready(count) = poll_fill(socket, cx, &mut self.to_client)? {
                    self.received(before, count)?;
                    moved = true;
                }
            }
        }
        let room = !self.ended && !self.over && self.input.len() < FULL && self.to_backend.len() < FULL;
        if room && let Poll::Ready(count) = poll_fill(&mut self.client, cx, &mut self.input)? {
            self.ended = count == 0;
            moved = true;
        }
        if moved { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The backend said something, which is in the client's buffer already.
    fn received(&mut self, before: usize, count: usize) -> io::Result<()> {
        Ledger::count(&self.visit.upstream.ledger.received, count as u64);
        if count == 0 {
            self.over = true;
            self.house.forget();
        }
        let mut at = before;
        while at < self.to_client.len() && self.session.opaque().is_none() {
            let (used, packet) = self.replies.step(&self.to_client[at..]);
            if let Some((_, reply)) = &mut self.setting {
                reply.extend_from_slice(&self.to_client[at..at + used]);
            }
            at += used;
            if let Some(packet) = packet {
                // A server says by itself that it ends the connection: that goes on, and is the end.
                match self.session.answered(&packet) {
                    Ok(()) => {}
                    Err(_) if packet.head.first() == Some(&0xff) => self.over = true,
                    Err(_) => return Err(no_mysql()),
                }
            }
        }
        self.learn();
        Ok(())
    }

    /// The server has answered a setting.
    fn learn(&mut self) {
        let Some((text, reply)) = self.setting.take_if(|_| self.session.quiet()) else { return };
        if reply.get(4) == Some(&0) {
            self.house.learn_setting(self.guest.fingerprint(&self.visit), text.clone(), reply);
            self.guest.settings.push(text);
        }
    }
}
