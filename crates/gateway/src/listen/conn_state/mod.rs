//! The life of a caller's connection: when it has been silent, slow or stuck for too long.
//!
//! One sweep a [`TICK`] looks at every connection of a thread, so that no request needs a timer for this. The judgement is
//! a pure function of a few numbers that the connection keeps up to date with plain stores.

mod table;
mod timeouts;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

pub(crate) use table::Lives;
use timeouts::Pulse;
pub(super) use timeouts::{Patience, TICK, ticks};

const CUT: u8 = 2;
const DRAIN: u8 = 1;
/// Ticks in which a connection that was accepted may bring its first request although the drain has begun. Its caller cannot know of that, and
/// would take a close for a failure.
const FIRST_WORD: u32 = 4;

/// One connection as its sweep sees it. Atomics only because hyper wants upgradable connections to be `Send`.
#[derive(Debug)]
pub(crate) struct Life {
    now: Arc<AtomicU32>,
    /// When its first request became due.
    begun: AtomicU32,
    /// Whether any request has begun.
    asked: AtomicBool,
    requests: AtomicU32,
    heard: AtomicBool,
    since: AtomicU32,
    /// Tick plus one; 0: not stuck.
    stuck: AtomicU32,
    /// Answers that wait for the caller to take more of them.
    untaken: AtomicU32,
    /// When the caller last took something of one.
    taken: AtomicU32,
    http2: AtomicBool,
    /// Whether its protocol is known and it can be told to end by that.
    speaks: AtomicBool,
    over: AtomicBool,
    /// Whether a request is being answered, or its answer has not all been written.
    answering: AtomicBool,
    /// Whether the last request to begin has no body, so that nothing more is expected from its caller.
    said_all: AtomicBool,
    /// Tick plus one since when nobody listens to the caller; 0: somebody does.
    deaf: AtomicU32,
    orders: AtomicU8,
    waker: OnceLock<Waker>,
}

impl Life {
    /// A connection that begins now and owes a request.
    pub(crate) fn new(now: &Arc<AtomicU32>) -> Arc<Self> {
        Arc::new(Self {
            since: AtomicU32::new(now.load(Ordering::Relaxed)),
            begun: AtomicU32::new(now.load(Ordering::Relaxed)),
            asked: AtomicBool::new(false),
            now: now.clone(),
            requests: AtomicU32::new(0),
            heard: AtomicBool::new(true),
            stuck: AtomicU32::new(0),
            untaken: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            http2: AtomicBool::new(false),
            speaks: AtomicBool::new(false),
            over: AtomicBool::new(false),
            answering: AtomicBool::new(false),
            said_all: AtomicBool::new(false),
            deaf: AtomicU32::new(0),
            orders: AtomicU8::new(0),
            waker: OnceLock::new(),
        })
    }

    /// Its protocol is known. With HTTP/2, bytes between requests are not the beginning of a request's head.
    pub(crate) fn speaks(&self, http2: bool) {
        self.speaks.store(true, Ordering::Relaxed);
        self.http2.store(http2, Ordering::Relaxed);
        if http2 {
            self.quiet();
        }
    }

    /// Its handshake is complete: its first request is due from now on.
    pub(crate) fn expects(&self) {
        self.begun.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bytes came.
    pub(crate) fn heard(&self) {
        let between = self.requests.load(Ordering::Relaxed) == 0 && !self.heard.load(Ordering::Relaxed);
        if between && !self.http2.load(Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
            self.touch();
        }
    }

    /// A write succeeded, or found no room.
    pub(crate) fn wrote(&self, room: bool) {
        if room {
            self.stuck.store(0, Ordering::Relaxed);
        } else if self.stuck.load(Ordering::Relaxed) == 0 {
            self.stuck.store(self.now.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// A request's head is complete, and `said_all` if it has no body; it lasts as long as the value.
    pub(crate) fn begin(self: &Arc<Self>, said_all: bool) -> Busy {
        self.requests.store(self.requests.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.asked.store(true, Ordering::Relaxed);
        self.answering.store(true, Ordering::Relaxed);
        self.said_all.store(said_all, Ordering::Relaxed);
        Busy { life: self.clone(), untaken: false }
    }

    /// All that was to be written is written.
    pub(crate) fn flushed(&self) {
        if self.requests.load(Ordering::Relaxed) == 0 {
            self.answering.store(false, Ordering::Relaxed);
        }
    }

    /// Whether what is written now belongs to a request's answer.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    /// Whether the caller need not be listened to: it is waiting for its answer, and not for long yet. Once this was so, the
    /// sweep wakes the connection until [`Life::hears`].
    pub(crate) fn is_deaf(&self) -> bool {
        let said_all = self.said_all.load(Ordering::Relaxed) && !self.http2.load(Ordering::Relaxed);
        if !said_all || self.requests.load(Ordering::Relaxed) == 0 || self.has_ended() {
            return false;
        }
        if self.deaf.load(Ordering::Relaxed) == 0 {
            self.deaf.store(self.now.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        !self.is_overheard(self.now.load(Ordering::Relaxed))
    }

    /// Whether nobody has listened to the caller for too long.
    fn is_overheard(&self, now: u32) -> bool {
        let since = self.deaf.load(Ordering::Relaxed);
        since != 0 && now.wrapping_sub(since - 1) >= 2
    }

    /// Somebody listens to the caller from now on.
    pub(crate) fn hears(&self) {
        self.deaf.store(0, Ordering::Relaxed);
    }

    /// No request is left. A connection that did not listen because of them has to begin again: nothing else would wake it
    /// when the next request comes.
    fn quiet(&self) {
        self.heard.store(false, Ordering::Relaxed);
        self.touch();
        if self.deaf.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    fn touch(&self) {
        self.since.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn pulse(&self) -> Pulse {
        Pulse {
            requests: self.requests.load(Ordering::Relaxed),
            heard: self.heard.load(Ordering::Relaxed),
            since: self.since.load(Ordering::Relaxed),
            stuck: self.stuck.load(Ordering::Relaxed).checked_sub(1),
            untaken: (self.untaken.load(Ordering::Relaxed) > 0).then(|| self.taken.load(Ordering::Relaxed)),
        }
    }

    /// Whether it is so young that its first request, or its handshake, is still on its way.
    fn is_expected(&self, now: u32) -> bool {
        !self.asked.load(Ordering::Relaxed) && now.wrapping_sub(self.begun.load(Ordering::Relaxed)) < FIRST_WORD
    }

    /// Ends the connection at once.
    pub(crate) fn cut(&self) {
        self.order(CUT);
    }

    /// Ends the connection after the requests that it has.
    pub(crate) fn drain(&self) {
        self.order(DRAIN);
    }

    fn order(&self, order: u8) {
        self.orders.fetch_or(order, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Whether it should end after the requests that it has.
    pub(crate) fn is_draining(&self) -> bool {
        self.orders.load(Ordering::Relaxed) & DRAIN != 0
    }

    /// Done when it should. To be awaited in the task that [`Life::govern`] runs.
    pub(crate) async fn drained(&self) {
        poll_fn(|_| if self.is_draining() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// HTTP has ended on it.
    pub(crate) fn ended(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether HTTP has ended on it: it was upgraded, or nobody holds it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Runs the connection until it ends or is cut; `None`: it was cut. One that has not said a word ends with the drain. It
    /// must be the whole of its task, because its waker is noted once.
    pub(crate) async fn govern<E>(&self, connection: impl Future<Output = Result<(), E>>) -> Option<Result<(), E>> {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            self.waker.get_or_init(|| cx.waker().clone());
            match self.orders.load(Ordering::Relaxed) {
                orders if orders & CUT != 0 => Poll::Ready(None),
                DRAIN if !self.speaks.load(Ordering::Relaxed) => Poll::Ready(Some(Ok(()))),
                _ => connection.as_mut().poll(cx).map(Some),
            }
        })
        .await
    }
}

/// One request of a connection, from its complete head to its complete answer.
#[derive(Debug)]
pub(crate) struct Busy {
    life: Arc<Life>,
    untaken: bool,
}

impl Busy {
    /// A piece of the answer is there for the caller; when it asks for the next one, it has taken this one.
    pub(crate) fn gives(&mut self) {
        self.life.taken.store(self.life.now.load(Ordering::Relaxed), Ordering::Relaxed);
        self.count(true);
    }

    /// The caller has taken all there is.
    pub(crate) fn waits(&mut self) {
        self.count(false);
    }

    fn count(&mut self, untaken: bool) {
        let before = self.life.untaken.load(Ordering::Relaxed);
        let after = before + u32::from(untaken) - u32::from(self.untaken);
        self.life.untaken.store(after, Ordering::Relaxed);
        self.untaken = untaken;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.waits();
        self.life.requests.store(self.life.requests.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        self.life.quiet();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_waits_is_listened_to_again_after_two_ticks() {
        let now = Arc::new(AtomicU32::new(7));
        let life = Life::new(&now);
        assert!(!life.is_deaf(), "it owes a request");
        let busy = life.begin(false);
        assert!(!life.is_deaf(), "it owes the request's body");
        drop(busy);
        let busy = life.begin(true);
        assert!(life.is_deaf() && !life.is_overheard(8));
        now.store(9, Ordering::Relaxed);
        assert!(life.is_overheard(9) && !life.is_deaf());
        life.hears();
        assert!(!life.is_overheard(100));
        drop(busy);
        assert!(!life.is_deaf(), "it may send the next");
    }

    struct Woken(AtomicU32);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_end_of_a_request_wakes_a_connection_that_did_not_listen() {
        let (life, woken) = (Life::new(&Arc::default()), Arc::new(Woken(AtomicU32::new(0))));
        life.waker.set(Waker::from(woken.clone())).unwrap();
        drop(life.begin(true));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0, "it listened all the time");
        let busy = life.begin(true);
        assert!(life.is_deaf());
        drop(busy);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_drain_waits_a_second_for_a_first_request_and_no_longer() {
        let (now, lives) = (Arc::default(), Lives::default());
        let (silent, asks) = (Life::new(&now), Life::new(&now));
        [&silent, &asks].into_iter().for_each(|life| lives.add(life.clone()));
        let patience = Patience { head: 100, idle: 100, stuck: 100 };
        lives.drain(0);
        assert!(!silent.is_draining() && !asks.is_draining());
        let _busy = asks.begin(true);
        lives.sweep(1, &patience);
        assert!(!silent.is_draining() && asks.is_draining());
        lives.sweep(FIRST_WORD, &patience);
        assert!(silent.is_draining());
    }

    #[test]
    fn a_request_separates_head_and_silence() {
        let now = Arc::new(AtomicU32::new(0));
        let life = Life::new(&now);
        assert!(life.pulse().heard, "a new connection owes a request");
        let busy = life.begin(true);
        drop(busy);
        assert_eq!((life.pulse().requests, life.pulse().heard), (0, false));
        now.store(9, Ordering::Relaxed);
        life.heard();
        assert_eq!((life.pulse().heard, life.pulse().since), (true, 9));
        now.store(12, Ordering::Relaxed);
        life.heard();
        assert_eq!(life.pulse().since, 9, "later bytes of the same head give no more time");
    }

    #[test]
    fn stuck_counts_from_the_first_failed_write() {
        let now = Arc::new(AtomicU32::new(3));
        let life = Life::new(&now);
        life.wrote(false);
        now.store(8, Ordering::Relaxed);
        life.wrote(false);
        assert_eq!(life.pulse().stuck, Some(3));
        life.wrote(true);
        assert_eq!(life.pulse().stuck, None);
    }

    #[test]
    fn untaken_answers_count_from_the_last_piece_of_any() {
        let now = Arc::new(AtomicU32::new(3));
        let life = Life::new(&now);
        let (mut one, mut other) = (life.begin(true), life.begin(true));
        assert_eq!(life.pulse().untaken, None);
        one.gives();
        now.store(5, Ordering::Relaxed);
        other.gives();
        other.gives();
        assert_eq!(life.pulse().untaken, Some(5));
        other.waits();
        assert_eq!(life.pulse().untaken, Some(5), "the first is still there");
        drop(one);
        assert_eq!(life.pulse().untaken, None);
    }
}
