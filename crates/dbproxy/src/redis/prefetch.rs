//! Values that are read when a call of the function arrives, and given to its first `GET`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tokio::task::{JoinHandle, spawn_local};

use super::House;
use super::backend::{Backend, Unfit};
use super::cache::LONGEST;
use super::command_effect::{Effect, Read};
use super::relay::Relay;
use super::settings::Identity;
use crate::Visit;
use crate::prefetch::{Forecast, HELD};
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::{Got, Kept, Reused};

/// Reads of one destination.
#[derive(Debug, Default)]
pub(super) struct Reads {
    book: RefCell<Forecast<Identity, Issued>>,
    /// Answers that a write has ended, and that nobody has counted.
    ended: Cell<u64>,
}

/// A read that is under way or done.
#[derive(Debug)]
struct Issued {
    how: Identity,
    answer: JoinHandle<Option<Vec<u8>>>,
}

/// A call of the function has arrived.
pub fn foresee(visit: &Visit) {
    let house = super::house(visit);
    let Some(reads) = house.reads.get() else { return };
    for read in &visit.upstream.destination.egress.prefetch {
        let (function, now) = (&visit.caller.function, Instant::now());
        let Some((how, _)) = reads.book.borrow().known(function, read) else { continue };
        let (room, old) = reads.book.borrow_mut().has_room(function, read, now);
        Ledger::count(&visit.upstream.ledger.unforeseen, old);
        if room {
            let answer = spawn_local(read_ahead(visit.clone(), house.clone(), read.clone(), how.clone()));
            reads.book.borrow_mut().issued(function, read, Issued { how, answer }, now);
            spawn_local(forget(visit.clone(), house.clone()));
        }
    }
}

async fn forget(visit: Visit, house: Rc<House>) {
    tokio::time::sleep(HELD).await;
    if let Some(reads) = house.reads.get() {
        let old = reads.book.borrow_mut().sweep(Instant::now()) + reads.ended.take();
        Ledger::count(&visit.upstream.ledger.unforeseen, old);
    }
}

async fn read_ahead(visit: Visit, house: Rc<House>, read: String, how: Identity) -> Option<Vec<u8>> {
    let born = Instant::now();
    let deadline = (born + HELD).into();
    let getting = async {
        let mut kept = match house.bench.acquire(&visit.upstream, &how, born + HELD).await.ok()? {
            Got::Used(kept) => kept,
            Got::New(lease) => {
                let socket =
                    nearpath_connpool::tls::on(lease, &visit.upstream.destination, &visit.upstream.rooms).await.ok()?;
                let mut backend = Backend { socket };
                backend.set_up(&visit.upstream.destination, &how).await.ok()?;
                Kept::new(backend, born)
            }
        };
        match kept.item.get(read.as_bytes(), LONGEST).await {
            Ok(reply) => {
                house.bench.give_back(&visit.upstream, &how, kept);
                Some(reply)
            }
            Err(Unfit::Refused(_)) => {
                house.bench.give_back(&visit.upstream, &how, kept);
                None
            }
            Err(Unfit::Broken(_)) => {
                kept.item.close();
                None
            }
        }
    };
    tokio::time::timeout_at(deadline, getting).await.ok().flatten()
}

/// Something was written, or may have been: now, and again when its reply has come.
pub(super) fn wrote(reads: &Reads, effect: &Effect) {
    let ended = match effect {
        Effect::Nothing | Effect::Reads(_) => 0,
        Effect::Writes(keys) => {
            let is_about = |read: &str| keys.iter().any(|key| key == read.as_bytes());
            reads.book.borrow_mut().wrote(is_about)
        }
        Effect::Anything => reads.book.borrow_mut().wrote(|_| true),
    };
    reads.ended.set(reads.ended.get() + ended);
}

impl Relay {
    /// Answers a read with the value that was read ahead; waits for it when it is under way. Whether it did.
    pub(super) async fn foreseen(&mut self, read: &Read) -> bool {
        let (function, how) = (&self.visit.caller.function, self.session.identity());
        let Some(reads) = self.house.reads.get() else { return false };
        let declared = self.visit.upstream.destination.egress.prefetch.iter().find(|one| one.as_bytes() == read.key);
        let Some(declared) = declared.filter(|_| !read.listed) else { return false };
        let is_same = |issued: &Issued| issued.how.reader() == how.reader() && issued.how.db() == how.db();
        let (found, old) = reads.book.borrow_mut().take(function, declared, Instant::now(), is_same);
        reads.book.borrow_mut().learn(function, declared, how.clone());
        Ledger::count(&self.visit.upstream.ledger.unforeseen, old + reads.ended.take());
        let Some(issued) = found else { return false };
        match issued.answer.await {
            Ok(Some(reply)) => {
                Ledger::count(&self.visit.upstream.ledger.foreseen, 1);
                self.to_client.extend_from_slice(&reply);
                true
            }
            _ => {
                Ledger::count(&self.visit.upstream.ledger.unforeseen, 1);
                false
            }
        }
    }
}
