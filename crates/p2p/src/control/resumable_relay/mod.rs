//! A relay that is opened when it is needed, and outlives its connections.
//!
//! [`Pieces`] says what goes where. At first there is the line, which takes the first few bytes: enough to shake hands, and to move to a
//! direct way that comes soon; or all that a short link carries, for which no direct way is looked for. The relay is opened once the
//! direct way has had its head start, or is not to be had, or when the line does not carry what it was given. When its connection breaks
//! it is opened anew, for a while, and both sides go on where they were.
//!
//! There is no task: whoever reads, writes or waits drives it, as with a way.

mod control_channel;
mod dial;
mod direct_search;
mod io_traits;
mod timers;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use super::backoff::Backoff;
use super::sequence::{Pieces, Share, Wrong};
pub(super) use control_channel::{Spoken, Words};
pub(super) use dial::{Cut, Dial, Dialling};
pub(super) use direct_search::{Prospect, Search};
use timers::{Timer, Timers};

/// The peer is told so often what came, if there is nothing else to say.
const TELL: Duration = Duration::from_millis(100);
/// A connection that was there for so long was a good one.
const GOOD: Duration = Duration::from_secs(10);

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// The direct way is waited for, before the relay is opened.
    pub(super) head_start: Duration,
    /// What was said on the line is acknowledged within, or the relay says it.
    pub(super) heard: Duration,
    /// The relay may be away.
    pub(super) patience: Duration,
}

/// See the module.
pub(super) struct Lasting<D: Dial> {
    pieces: Pieces,
    line: Option<Words>,
    prospects: Option<BoxStream<'static, Prospect>>,
    begin: Option<Arc<Notify>>,
    dial: D,
    relay: State<D::Relay>,
    times: Times,
    backoff: Backoff,
    timers: Timers,
    alarm: Pin<Box<Sleep>>,
    /// What was given to the relay's connection is not flushed.
    unflushed: bool,
    /// A connection to the relay was there once.
    opened: bool,
    /// Why the last one is gone.
    last: Option<io::Error>,
    closing: bool,
    end: Option<End>,
}

enum State<R> {
    /// Nothing needs it so far.
    Unneeded,
    /// It is needed, and was not asked for; after a break once the pause is over.
    Wanted,
    Opening(Dialling<R>),
    /// Since then.
    Open(R, Instant),
}

/// There is no more.
#[derive(Debug, Clone)]
enum End {
    /// The peer has closed.
    Closed,
    Broken(io::ErrorKind, String),
}

impl<D: Dial> Lasting<D> {
    pub(super) fn new(dial: D, mut words: Words, search: Search, times: Times) -> Self {
        let (now, mut timers) = (Instant::now(), Timers::default());
        let (share, first, after) = match &search.begin {
            None => (Share::BEGINNING, Timer::HeadStart, times.head_start),
            // Before a peer that needs the relay, and whose search was not heard of, gives up.
            Some((_, lasts)) => (Share::ALL_OF_LITTLE, Timer::Short, (*lasts).min(times.patience / 2)),
        };
        timers.set(first, now + after);
        Self {
            pieces: words.said.take().map_or_else(|| Pieces::new(share), |hello| Pieces::greeted(hello, share)),
            line: Some(words),
            prospects: Some(search.prospects),
            begin: search.begin.map(|(begin, _)| begin),
            dial,
            relay: State::Unneeded,
            times,
            backoff: Backoff::default(),
            timers,
            alarm: Box::pin(sleep_until(now)),
            unflushed: false,
            opened: false,
            last: None,
            closing: false,
            end: None,
        }
    }

    /// Does all that can be done now, but to read the relay.
    fn drive(&mut self, cx: &mut Context<'_>) {
        while self.end.is_none() {
            self.look(cx);
            self.listen(cx);
            self.open(cx);
            self.speak(cx);
            if !self.wait(cx) {
                return;
            }
        }
    }

    /// What comes over the line.
    fn listen(&mut self, cx: &mut Context<'_>) {
        while let Some(line) = &mut self.line
            && let Poll::Ready(saying) = line.told.poll_recv(cx)
        {
            match saying {
                Some(saying) => {
                    let gap = self.heard(|pieces| pieces.heard(saying));
                    if gap {
                        self.need(); // what is missing comes over the relay
                    }
                }
                None => {
                    self.line = None;
                    self.need();
                    if self.is_done() {
                        self.end = Some(End::Closed);
                    }
                }
            }
        }
    }

    /// Something that the peer said is taken in.
    fn heard<T: Default>(&mut self, take: impl FnOnce(&mut Pieces) -> Result<T, Wrong>) -> T {
        let before = self.pieces.acknowledged();
        let taken = take(&mut self.pieces).unwrap_or_else(|wrong| {
            self.give_up(io::ErrorKind::InvalidData, wrong.to_string());
            T::default()
        });
        if self.pieces.acknowledged() > before {
            self.timers.clear(Timer::Unheard);
            self.timers.clear(Timer::Closing);
        }
        taken
    }

    /// The relay is needed, unless everything was said. The search tells the peer, who may need nothing: it opens its end, or both move.
    fn need(&mut self) {
        self.timers.clear(Timer::HeadStart);
        if matches!(self.relay, State::Unneeded) && !self.is_done() {
            self.relay = State::Wanted;
            self.timers.set(Timer::Away, Instant::now() + self.times.patience);
            self.search();
        }
    }

    /// Opens the relay.
    fn open(&mut self, cx: &mut Context<'_>) {
        if matches!(self.relay, State::Wanted) && !self.timers.is_set(Timer::Dial) {
            self.relay = State::Opening(self.dial.dial());
        }
        if let State::Opening(dialling) = &mut self.relay
            && let Poll::Ready(opened) = dialling.as_mut().poll(cx)
        {
            match opened {
                Ok(relay) => {
                    self.relay = State::Open(relay, Instant::now());
                    self.opened = true;
                    self.pieces.begin();
                }
                Err(cut) => self.cut(cut),
            }
        }
    }

    /// Says what is to be said, on the line while there is one, and on the relay if it takes it.
    fn speak(&mut self, cx: &mut Context<'_>) {
        if let Some(line) = &self.line {
            while let Some(saying) = self.pieces.say() {
                (line.tell)(saying);
            }
            if self.pieces.is_unheard() {
                let heard = self.times.heard;
                self.timers.set_once(Timer::Unheard, || Instant::now() + heard);
            }
            if !self.pieces.is_said() {
                self.need();
            }
            if self.pieces.is_half_said() {
                self.search();
            }
        }
        if let Err(error) = self.send(cx) {
            self.cut(Cut::of(error));
        }
    }

    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let State::Open(relay, _) = &mut self.relay else { return Ok(()) };
        while self.pieces.has_frame() && relay.poll_ready_unpin(cx)?.is_ready() {
            let Some(frame) = self.pieces.frame() else { break };
            relay.start_send_unpin(frame)?;
            self.unflushed = true;
        }
        if self.unflushed {
            self.unflushed = relay.poll_flush_unpin(cx)?.is_pending();
        }
        Ok(())
    }

    /// Whether it was time for something.
    fn wait(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.timers.next() else { return false };
        if self.alarm.deadline() != at {
            self.alarm.as_mut().reset(at);
        }
        if self.alarm.as_mut().poll(cx).is_pending() {
            return false;
        }
        while let Some(timer) = self.timers.take(Instant::now()) {
            self.passed(timer);
        }
        true
    }

    fn passed(&mut self, timer: Timer) {
        match timer {
            Timer::Short => self.search(),
            Timer::HeadStart | Timer::Unheard => self.need(),
            Timer::Tell => self.pieces.tell(),
            Timer::Dial => (), // it is wanted
            Timer::Away => self.away(),
            Timer::Closing => {
                let text = format!("the peer has taken nothing for {:?} of what is left for it", self.times.patience);
                self.give_up(io::ErrorKind::TimedOut, text);
            }
        }
    }

    /// Reads the relay. Whether something came of it.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let State::Open(relay, _) = &mut self.relay else { return false };
        match relay.poll_next_unpin(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(frame))) => {
                if self.heard(|pieces| pieces.came(frame)) {
                    self.joined();
                }
            }
            Poll::Ready(Some(Err(error))) => self.cut(Cut::of(error)),
            Poll::Ready(None) => self.end = Some(End::Closed),
        }
        true
    }

    /// The peer is there, too: nobody needs the line any more.
    fn joined(&mut self) {
        self.timers.clear(Timer::Away);
        self.timers.clear(Timer::Unheard);
        (self.line, self.prospects, self.last) = (None, None, None);
    }

    /// The relay's connection is gone, or did not come to be.
    fn cut(&mut self, cut: Cut) {
        if let State::Open(_, since) = &self.relay
            && since.elapsed() >= GOOD
        {
            self.backoff.reset();
        }
        self.pieces.cut();
        (self.relay, self.unflushed) = (State::Wanted, false);
        if self.is_done() {
            self.end = Some(End::Closed);
        } else if cut.is_final {
            self.give_up(cut.error.kind(), cut.error.to_string());
        } else {
            let now = Instant::now();
            self.timers.set(Timer::Dial, now + self.backoff.pause(fastrand::f64()));
            self.timers.set_once(Timer::Away, || now + self.times.patience);
            self.last = Some(cut.error);
        }
    }

    fn away(&mut self) {
        let kind = self.last.as_ref().map_or(io::ErrorKind::TimedOut, io::Error::kind);
        let last = self.last.take().map_or_else(|| "the peer did not come to it".to_owned(), |last| last.to_string());
        let text =
            format!("the way over the relay is gone, and did not come back within {:?}: {last}", self.times.patience);
        self.give_up(kind, text);
    }

    fn give_up(&mut self, kind: io::ErrorKind, text: String) {
        (self.line, self.prospects, self.relay) = (None, None, State::Unneeded);
        self.end = Some(End::Broken(kind, text));
    }

    /// Nobody wants to hear, and nothing is left to be said: the peer has it, or says nothing more itself.
    fn is_done(&self) -> bool {
        self.closing && (self.pieces.is_acknowledged().0 || self.pieces.peer_is_over())
    }
}

#[cfg(test)]
mod tests;
