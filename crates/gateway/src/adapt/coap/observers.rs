//! Who observes what (RFC 7641). An observed function is called again at an interval, and at once when a request of CoAP
//! changed something at the same path; its observer hears of it when the answer is another one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::message::{Block, Wanted};

/// An observation: a client and its token.
pub(super) type Whose = (SocketAddr, Vec<u8>);

/// An unchanged answer is told again after this, to learn whether anybody still listens.
const SILENCE: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
struct Observer {
    wanted: Wanted,
    block2: Option<Block>,
    etag: Vec<u8>,
    number: u32,
    due: Instant,
    told: Instant,
    /// It is being called for, or has not acknowledged its last notification.
    busy: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Observers {
    all: HashMap<Whose, Observer>,
    most: usize,
    each: usize,
    interval: Duration,
}

impl Observers {
    pub(super) fn new(most: usize, each: usize, interval: Duration) -> Self {
        Self { all: HashMap::new(), most, each, interval }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Begins an observation; the same client and token replace an older one. `None`: it has, or all have, enough.
    pub(super) fn add(
        &mut self,
        whose: Whose,
        wanted: Wanted,
        block2: Option<Block>,
        etag: Vec<u8>,
        now: Instant,
    ) -> Option<u32> {
        let number = self.all.remove(&whose).map_or(1, |old| next(old.number));
        let theirs = self.all.keys().filter(|(from, _)| *from == whose.0).count();
        if self.all.len() >= self.most || theirs >= self.each {
            return None;
        }
        let observer = Observer { wanted, block2, etag, number, due: now + self.interval, told: now, busy: false };
        self.all.insert(whose, observer);
        Some(number)
    }

    pub(super) fn remove(&mut self, whose: &Whose) {
        self.all.remove(whose);
    }

    /// The last notification was taken.
    pub(super) fn took(&mut self, whose: &Whose) {
        self.all.get_mut(whose).into_iter().for_each(|observer| observer.busy = false);
    }

    /// Something changed at that path.
    pub(super) fn changed(&mut self, path: &[String], now: Instant) {
        self.all.values_mut().filter(|one| one.wanted.path == path).for_each(|one| one.due = now);
    }

    /// The calls that are due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Whose, Wanted)> {
        let due = self.all.iter_mut().filter(|(_, one)| !one.busy && now >= one.due);
        let called = due.map(|(whose, one)| {
            (one.busy, one.due) = (true, now + self.interval);
            (whose.clone(), one.wanted.clone())
        });
        called.collect()
    }

    /// There was no room for the call.
    pub(super) fn put_off(&mut self, whose: &Whose, now: Instant) {
        if let Some(observer) = self.all.get_mut(whose) {
            (observer.busy, observer.due) = (false, now + self.interval);
        }
    }

    /// The call was answered. `Some`: its observer is to hear of it. What is not good ends the observation.
    pub(super) fn news(
        &mut self,
        whose: &Whose,
        etag: Vec<u8>,
        good: bool,
        now: Instant,
    ) -> Option<(u32, Wanted, Option<Block>)> {
        let observer = self.all.get_mut(whose)?;
        let (wanted, block2) = (observer.wanted.clone(), observer.block2);
        if !good {
            self.all.remove(whose);
            return Some((0, wanted, block2));
        }
        if observer.etag == etag && now < observer.told + SILENCE {
            observer.busy = false;
            return None;
        }
        (observer.etag, observer.told, observer.number) = (etag, now, next(observer.number));
        Some((observer.number, wanted, block2))
    }

    /// When the next call is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.all.values().filter(|one| !one.busy).map(|one| one.due).min()
    }
}

/// Numbers have 24 bits.
fn next(number: u32) -> u32 {
    (number + 1) & 0xff_ffff
}
