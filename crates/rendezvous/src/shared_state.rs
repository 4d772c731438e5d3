//! The desk with its lines' letter boxes: what the desk wants said is put there, each line's task takes it out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{Notify, mpsc};

use super::job_rates::Jobs;
use super::metrics::Ledger;
use super::outbox::{Full, Letter, LetterBox};
use super::settings::Limits;
use super::state::{Action, Chance, Counts, Desk, LineNo, Moment};
use nearpath_p2p::message::{Bye, Said, SessionText, Told};
use nearpath_p2p::ticket::{Key, Ticket};

/// See the module. The lock is held for as long as it takes to decide; nothing is awaited under it.
#[derive(Debug)]
pub(super) struct Hall {
    inner: Mutex<Inner>,
    /// The desk's next deadline is another one.
    sooner: Notify,
    pub(super) ledger: Arc<Ledger>,
    pub(super) jobs: Jobs,
    pub(super) limits: Limits,
}

#[derive(Debug)]
struct Inner {
    desk: Desk<Dice>,
    boxes: HashMap<LineNo, LetterBox>,
    last: LineNo,
    closed: bool,
}

/// The machine's random numbers.
#[derive(Debug)]
pub(super) struct Dice(SystemRandom);

impl Chance for Dice {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes).expect("getrandom(2) does not fail once it has worked, and a process starts with it");
    }
}

impl Hall {
    pub(super) fn new(key: Key, limits: Limits) -> Self {
        let desk = Desk::new(key, limits.desk, Dice(SystemRandom::new()));
        let inner = Inner { desk, boxes: HashMap::new(), last: 0, closed: false };
        Self { inner: Mutex::new(inner), sooner: Notify::new(), ledger: Arc::default(), jobs: Jobs::default(), limits }
    }

    /// A worker comes; what it is told is in the box.
    pub(super) fn arrive(&self, ticket: &Ticket) -> (LineNo, mpsc::Receiver<Letter>) {
        let (box_, letters) = LetterBox::new();
        let line = self.with(|inner| {
            inner.last += 1;
            let line = inner.last;
            if inner.closed {
                let _ = box_.put(Letter::End(Bye::Draining)); // it is new: there is room
                return line;
            }
            inner.boxes.insert(line, box_);
            let actions = inner.desk.arrive(line, ticket, Moment::now());
            self.post(inner, actions);
            line
        });
        (line, letters)
    }

    pub(super) fn say(&self, line: LineNo, said: Said) {
        self.with(|inner| {
            let actions = inner.desk.say(line, said, Moment::now());
            self.post(inner, actions);
        });
    }

    /// A worker sends a [`nearpath_p2p::message::Parcel`].
    pub(super) fn carry(&self, line: LineNo, session: SessionText, frame: Bytes) {
        self.with(|inner| {
            let actions = inner.desk.carry(line, session, frame);
            self.post(inner, actions);
        });
    }

    pub(super) fn leave(&self, line: LineNo) {
        self.with(|inner| {
            inner.boxes.remove(&line);
            inner.desk.leave(line);
        });
    }

    /// Tells every line that it is over; who comes later is told at once.
    pub(super) fn close(&self) {
        self.with(|inner| {
            inner.closed = true;
            let actions = inner.desk.close_all();
            self.post(inner, actions);
        });
    }

    /// What was counted, and how much there is.
    pub(super) fn look(&self) -> (Counts, (usize, usize, usize)) {
        self.with(|inner| (inner.desk.counts(), inner.desk.size()))
    }

    /// Does what time brings about, for ever.
    pub(super) async fn keep_time(&self) {
        loop {
            match self.with(|inner| inner.desk.next()) {
                Some(at) if at > Instant::now() => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {}
                        () = self.sooner.notified() => {}
                    }
                }
                Some(_) => self.tick(),
                None => self.sooner.notified().await,
            }
        }
    }

    fn tick(&self) {
        self.with(|inner| {
            let actions = inner.desk.tick(Moment::now());
            self.post(inner, actions);
        });
    }

    fn post(&self, inner: &mut Inner, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Tell(line, told) => inner.tell(line, told, &self.ledger),
                Action::Carry(line, frame) => {
                    if let Some(box_) = inner.boxes.get(&line) {
                        box_.carry(frame, self.limits.lying, &self.ledger);
                    }
                }
                Action::Close(line, why) => {
                    if let Some(box_) = inner.boxes.remove(&line) {
                        let _ = box_.put(Letter::End(why)); // a full box is closed all the same
                    }
                }
            }
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let before = inner.desk.next();
        let out = f(&mut inner);
        if inner.desk.next().is_some_and(|next| before.is_none_or(|before| next < before)) {
            self.sooner.notify_one();
        }
        out
    }
}

impl Inner {
    fn tell(&mut self, line: LineNo, told: Told, ledger: &Ledger) {
        let put = self.boxes.get(&line).map(|box_| box_.put(Letter::Tell(Box::new(told))));
        if let Some(Err(Full)) = put {
            Ledger::count(&ledger.slow);
            self.boxes.remove(&line);
            self.desk.leave(line);
        }
    }
}
