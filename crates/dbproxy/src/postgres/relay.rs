//! One client from its first words to its last: bytes both ways, and a backend for as long as it needs one.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::backend::Backend;
use super::cancel::Seat;
use super::connection::Line;
use super::frame::Piece;
use super::handshake::Guest;
use super::message::{self, state};
use super::session::{Odd, Talk, Ways};
use super::state::Room;
use crate::Visit;
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::{Kept, Reused};

/// Longest wait for a client to take what it is told last.
const FAREWELL: Duration = Duration::from_secs(1);

/// A client that is in, and what it has.
pub(super) struct Visitor {
    client: Line<TcpStream>,
    guest: Guest,
    talk: Talk,
    seat: Seat,
    room: Rc<Room>,
    visit: Visit,
    pinned: bool,
    client_ended: bool,
}

/// How a visit goes on.
enum Course {
    On,
    /// The client is done.
    Left,
    /// Its backend is gone, or cannot be had: it has been told.
    Lost,
}

impl Visitor {
    pub(super) fn new(client: Line<TcpStream>, guest: Guest, seat: Seat, room: Rc<Room>, visit: Visit) -> Self {
        let mode = visit.upstream.destination.egress.mode;
        let mut talk = Talk::new(mode, guest.values.clone());
        guest.keeps_backend(mode).into_iter().for_each(|why| talk.stay(why));
        let mut visitor = Self { client, guest, talk, seat, room, visit, pinned: false, client_ended: false };
        visitor.rest();
        if let Some(kept) = visitor.guest.backend.take() {
            visitor.sit_down(kept, None);
        }
        visitor
    }

    /// Serves the client until it leaves.
    ///
    /// # Errors
    /// When its connection breaks.
    pub(super) async fn stay(&mut self) -> io::Result<()> {
        loop {
            let course = match self.talk().await {
                Ok(Course::On) => self.step().await?,
                Ok(course) => course,
                Err(odd) => self.tell_off(&odd),
            };
            match course {
                Course::On => {}
                Course::Left => return Ok(()),
                Course::Lost => return self.part().await,
            }
        }
    }

    /// Deals with all that came.
    async fn talk(&mut self) -> Result<Course, Odd> {
        let heard = self.hear().await?;
        if let (Some(kept), false) = (&mut self.guest.backend, self.client.is_full()) {
            let Backend { line, facts, .. } = &mut kept.item;
            self.talk.relay(&mut line.inbox, facts, &mut self.client.out)?;
        }
        self.note_pin();
        self.rest();
        // Who has said its last word still hears the replies.
        let stuck = self.talk.is_owed_more() || !self.client.inbox.is_between_messages();
        let done = self.client_ended && (stuck || (self.talk.is_quiet() && self.client.out.is_empty()));
        Ok(if done && matches!(heard, Course::On) { Course::Left } else { heard })
    }

    /// Passes on what the client said.
    async fn hear(&mut self) -> Result<Course, Odd> {
        while !self.talk.is_crowded() && !self.is_full() {
            let Some(piece) = self.client.inbox.next()? else { break };
            if matches!(&piece, Piece::Whole(message) if message[0] == b'X') {
                return Ok(Course::Left);
            }
            if self.guest.backend.is_none() {
                if !self.talk.needs_backend(&piece) {
                    self.talk.answer(piece, &mut self.client.out);
                    continue;
                }
                match self.attach(&piece).await {
                    Course::On => {}
                    course => return Ok(course),
                }
            }
            let kept = self.guest.backend.as_mut().expect("it has just been attached");
            let Backend { line, facts, .. } = &mut kept.item;
            let names = &self.room.names;
            let ways = &mut Ways { to_backend: &mut line.out, to_client: &mut self.client.out, names };
            self.talk.hear(piece, facts, ways)?;
        }
        Ok(Course::On)
    }

    fn is_full(&self) -> bool {
        self.client.is_full() || self.guest.backend.as_ref().is_some_and(|kept| kept.item.line.is_full())
    }

    /// Gets a backend for what begins with `first`. A client that hangs up meanwhile waits no longer.
    async fn attach(&mut self, first: &Piece) -> Course {
        let deadline = Instant::now() + self.visit.upstream.destination.egress.wait;
        let found = {
            let client = &mut self.client;
            let mut finding = std::pin::pin!(self.guest.find(&self.visit, &self.room, deadline));
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
            None => Course::Left,
            Some(Err(unfit)) => {
                tracing::debug!(function = %self.visit.caller.function, to = self.visit.upstream.destination.key.to, %unfit, "no backend");
                unfit.write_down(&self.visit.upstream.ledger);
                self.client.out.extend_from_slice(&unfit.words(&self.visit.upstream.destination.key.to));
                Course::Lost
            }
            Some(Ok(kept)) => {
                self.sit_down(kept, Some(first));
                Course::On
            }
        }
    }

    fn sit_down(&mut self, mut kept: Kept<Backend>, first: Option<&Piece>) {
        self.talk.arrive(first, &mut kept.item.facts, &mut kept.item.line.out);
        self.seat.serves(Some(&kept.item));
        self.guest.backend = Some(kept);
    }

    /// Gives the backend back when nothing binds it to this client.
    fn rest(&mut self) {
        let Some(kept) = &self.guest.backend else { return };
        let free = self.talk.pin().is_none() && self.talk.is_at_rest(&kept.item.facts) && kept.item.has_said_all();
        if free && self.client.inbox.is_between_messages() {
            let kept = self.guest.backend.take().expect("it is there");
            self.seat.serves(None);
            self.give_back(kept, false);
        }
    }

    fn give_back(&self, mut kept: Kept<Backend>, used_up: bool) {
        kept.item.rests = Instant::now();
        let (room, visit, fingerprint) = (self.room.clone(), self.visit.clone(), self.guest.fingerprint.clone());
        if !fingerprint.is_shown_again() {
            return kept.item.close();
        }
        if !used_up && !kept.item.facts.leaves && !kept.item.cancels.are_under_way() {
            return room.bench.give_back(&visit.upstream, &fingerprint, kept);
        }
        tokio::task::spawn_local(async move {
            let (backend, born) = kept.apart();
            if let Some(backend) = backend.cleaned().await {
                Ledger::count(&visit.upstream.ledger.resets, 1);
                room.bench.give_back(&visit.upstream, &fingerprint, Kept::new(backend, born));
            }
        });
    }

    fn note_pin(&mut self) {
        if let Some(why) = self.talk.pin()
            && !std::mem::replace(&mut self.pinned, true)
            && why != "session mode"
        {
            self.visit.upstream.ledger.pinned(why);
        }
    }

    /// Moves bytes; waits until some have moved.
    async fn step(&mut self) -> io::Result<Course> {
        let (client, ended) = (&mut self.client, &mut self.client_ended);
        let mut backend = self.guest.backend.as_mut().map(|kept| &mut kept.item.line);
        let ledger = &self.visit.upstream.ledger;
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
                        Ledger::count(&ledger.sent, sent as u64);
                        moved = true;
                    }
                    // What it said before it went is read first.
                    Poll::Ready(Err(_)) => line.out.clear(),
                    Poll::Pending => {}
                }
                if !client.is_full()
                    && let Poll::Ready(filled) = line.poll_fill(cx)
                {
                    match filled {
                        Ok(count @ 1..) => Ledger::count(&ledger.received, count as u64),
                        Ok(0) | Err(_) => return Poll::Ready(Ok(Course::Lost)),
                    }
                    moved = true;
                }
            }
            if moved { Poll::Ready(Ok(Course::On)) } else { Poll::Pending }
        })
        .await
    }

    /// Somebody does not keep to the protocol: the client hears it, and both are closed.
    fn tell_off(&mut self, odd: &Odd) -> Course {
        let to = &self.visit.upstream.destination.key.to;
        tracing::warn!(function = %self.visit.caller.function, to, %odd, "a conversation that is not PostgreSQL's");
        self.client.out.extend_from_slice(&message::fatal(state::PROTOCOL, &format!("nearpath: {odd}"), ""));
        self.guest.backend.take().into_iter().for_each(|kept| kept.item.hang_up());
        Course::Lost
    }

    /// Says the last words. What the client still sends is read, for a connection that is closed with something unread loses what was written.
    async fn part(&mut self) -> io::Result<()> {
        let last_words = async {
            self.client.flush().await?;
            self.client.stream.shutdown().await?;
            let mut rest = [0; 4096];
            while self.client.stream.read(&mut rest).await? > 0 {}
            Ok(())
        };
        tokio::time::timeout(FAREWELL, last_words).await.unwrap_or(Ok(()))
    }

    /// Ends the client's hold on its backend. One that is in order is cleaned for the next client, any other is closed.
    fn leave(&mut self) {
        let Some(kept) = self.guest.backend.take() else { return };
        self.seat.serves(None);
        let in_order = self.talk.is_quiet() && kept.item.facts.status != 0 && kept.item.has_said_all();
        match (in_order, self.client.inbox.is_between_messages()) {
            (true, true) => self.give_back(kept, true),
            (_, true) => kept.item.close(),
            (_, false) => kept.item.hang_up(),
        }
    }
}

/// Also when its task is ended from outside, because its instance has ended.
impl Drop for Visitor {
    fn drop(&mut self) {
        self.leave();
    }
}
