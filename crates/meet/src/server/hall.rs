//! The desk with its lines' letter boxes: what the desk wants said is put there, each line's task takes it out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{Notify, mpsc};

use super::desk::{Action, Chance, Counts, Desk, LineNo, Moment};
use super::ledger::Ledger;
use super::settings::Limits;
use crate::message::{Bye, Said, Told};
use crate::ticket::{Key, Ticket};

/// So many messages may lie in a letter box: all grants of a worker for whom many have waited, and some more. Memory is
/// taken for those that are there.
const BOX: usize = 4096;

/// What a line's task takes out of its box. A box that is closed without an end is one that overflowed.
#[derive(Debug)]
pub(super) enum Letter {
    /// Boxed: a letter box takes the room of 32 letters from its beginning.
    Tell(Box<Told>),
    End(Bye),
}

/// See the module. The lock is held for as long as it takes to decide; nothing is awaited under it.
#[derive(Debug)]
pub(super) struct Hall {
    inner: Mutex<Inner>,
    /// The desk's next deadline is another one.
    sooner: Notify,
    pub(super) ledger: Arc<Ledger>,
    pub(super) limits: Limits,
}

#[derive(Debug)]
struct Inner {
    desk: Desk<Dice>,
    boxes: HashMap<LineNo, mpsc::Sender<Letter>>,
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
        Self { inner: Mutex::new(inner), sooner: Notify::new(), ledger: Arc::default(), limits }
    }

    /// A worker comes; what it is told is in the box.
    pub(super) fn arrive(&self, ticket: &Ticket) -> (LineNo, mpsc::Receiver<Letter>) {
        let (box_, letters) = mpsc::channel(BOX);
        let line = self.with(|inner| {
            inner.last += 1;
            let line = inner.last;
            if inner.closed {
                let _ = box_.try_send(Letter::End(Bye::Draining)); // it is new: there is room
                return line;
            }
            inner.boxes.insert(line, box_);
            let actions = inner.desk.arrive(line, ticket, Moment::now());
            inner.post(actions, &self.ledger);
            line
        });
        (line, letters)
    }

    pub(super) fn say(&self, line: LineNo, said: Said) {
        self.with(|inner| {
            let actions = inner.desk.say(line, said, Moment::now());
            inner.post(actions, &self.ledger);
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
            inner.post(actions, &self.ledger);
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
            inner.post(actions, &self.ledger);
        });
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
    fn post(&mut self, actions: Vec<Action>, ledger: &Ledger) {
        for action in actions {
            match action {
                Action::Tell(line, told) => self.tell(line, told, ledger),
                Action::Close(line, why) => {
                    if let Some(box_) = self.boxes.remove(&line) {
                        let _ = box_.try_send(Letter::End(why)); // a full box is closed all the same
                    }
                }
            }
        }
    }

    fn tell(&mut self, line: LineNo, told: Told, ledger: &Ledger) {
        let sent = self.boxes.get(&line).map(|box_| box_.try_send(Letter::Tell(Box::new(told))));
        if let Some(Err(mpsc::error::TrySendError::Full(_))) = sent {
            Ledger::count(&ledger.slow);
            self.boxes.remove(&line);
            self.desk.leave(line);
        }
    }
}
