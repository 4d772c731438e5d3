//! What a domain's house writes down for whoever asks: its pool, its parties and its channels.
//!
//! The house writes when a party or channel comes or goes, never for a call; who reads takes the numbers out of shared
//! memory at that moment. So what nobody asks for costs nothing. A ledger outlives its house: the next one of that name goes
//! on writing in it, and counters go on from where they were.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_shm::region::Pages;
use nearpath_shm::{Channel, Party, reclaim};
use nearpath_types::FunctionId;

use super::calls::{Calls, Earlier};
use super::edges::{EdgeCounters, Key, Line, Past};
use super::pools::Pools;
use crate::clock::{self, Nanos};
use crate::registrar::Who;

/// A handle; clones are the same ledger.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    volumes: BTreeMap<u64, Volume>,
    last: u64,
    past: Past,
    earlier: Earlier,
}

impl Book {
    /// A channel is being forgotten.
    fn keep(&mut self, mut line: Line) {
        let last = line.calls();
        self.earlier.keep(line.edge(), last);
        self.past.keep(line, clock::now());
    }
}

/// What one house writes.
#[derive(Debug)]
struct Volume {
    pools: Pools,
    asked: Pages,
    bound: u64,
    parties: BTreeMap<Party, Who>,
    lines: BTreeMap<u32, (Line, Party, Party)>,
}

/// What a domain's pool is, and who holds how much of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Bytes of all slots: the pool's size without its words and padding.
    pub size: u64,
    /// Bytes of slots that are not free.
    pub used: u64,
    /// Bytes of one of its pages.
    pub page: u64,
    /// Huge pages were asked for, and there were none.
    pub missed_huge: bool,
    /// By function; none: the gateway.
    pub holders: BTreeMap<Option<FunctionId>, Held>,
    /// Held by numbers that no living party bears: the next sweep gives it back.
    pub dead: u64,
}

/// What the parties of one function hold together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Parties that live.
    pub parties: u64,
    /// Slots that they hold or are handing over.
    pub slots: u64,
    /// Bytes of these slots.
    pub bytes: u64,
    /// Bytes that they may hold.
    pub bound: u64,
}

/// Who is there, and who has a channel to whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roll {
    /// Every living party.
    pub parties: BTreeMap<Party, Who>,
    /// Caller and callee of every channel, those that are being wound up too.
    pub channels: Vec<(Party, Party)>,
}

impl Ledger {
    /// What every edge counted. `now` is [`clock::now`]: edges that have been closed for long are forgotten.
    pub fn edges(&self, now: Nanos) -> Vec<EdgeCounters> {
        let Book { volumes, past, .. } = &mut *self.book();
        past.with(volumes.values_mut().flat_map(|volume| volume.lines.values_mut()).map(|(line, ..)| line), now)
    }

    /// How often a function of this domain was called by others since the first volume began. Never falls, as long as the
    /// function is there.
    pub fn calls(&self, callee: &FunctionId) -> Calls {
        let mut book = self.book();
        let lines = book.volumes.values_mut().flat_map(|volume| volume.lines.values_mut()).map(|(line, ..)| line);
        let theirs = lines.filter(|line| matches!(line.edge(), (Some(_), Some(to)) if to == callee));
        let open = theirs.fold(Calls::default(), |all, line| all.and(line.calls()));
        open.and(book.earlier.of(callee))
    }

    /// Forgets how often functions were called that there are no more.
    pub fn retain(&self, known: impl Fn(&FunctionId) -> bool) {
        self.book().earlier.retain(known);
    }

    /// What the pool holds at this moment: looks at every slot's word (about 10⁴, some 10 µs). The words are the parties' to
    /// write: in a domain with a hostile one they are its word, but never more than the pool has. In a strict domain there is a
    /// pool for each party, and its use is the kernel's word: the memory behind it.
    pub fn holdings(&self) -> Option<Holdings> {
        let book = self.book();
        book.volumes.last_key_value().map(|(_, volume)| volume.holdings())
    }

    /// Who is there.
    pub fn roll(&self) -> Roll {
        let book = self.book();
        let Some((_, volume)) = book.volumes.last_key_value() else { return Roll::default() };
        let channels = volume.lines.values().map(|(_, caller, callee)| (*caller, *callee));
        Roll { parties: volume.parties.clone(), channels: channels.collect() }
    }

    /// Nobody writes in it, nobody else can, and nothing in it is worth showing.
    pub fn is_idle(&self) -> bool {
        let book = self.book();
        Arc::strong_count(&self.0) == 1 && book.volumes.is_empty() && book.past.is_empty() && book.earlier.is_empty()
    }

    /// For the house: begins a volume.
    pub(super) fn begin(&self, pools: Pools, asked: Pages, bound: u64) -> Writer {
        let mut book = self.book();
        book.last += 1;
        let number = book.last;
        let volume = Volume { pools, asked, bound, parties: BTreeMap::new(), lines: BTreeMap::new() };
        book.volumes.insert(number, volume);
        Writer { ledger: self.clone(), number }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    fn holdings(&self) -> Holdings {
        let mut all = self.pool();
        for who in self.parties.values() {
            let held = all.holders.entry(who.function().cloned()).or_default();
            held.parties += 1;
            held.bound += self.bound;
        }
        for (party, slots, bytes) in self.used() {
            all.used += bytes;
            match self.parties.get(&party).and_then(|who| all.holders.get_mut(&who.function().cloned())) {
                Some(held) => {
                    held.slots += slots;
                    held.bytes += bytes;
                }
                None => all.dead += bytes,
            }
        }
        all
    }

    fn pool(&self) -> Holdings {
        let (page, size) = match &self.pools {
            Pools::Shared(pool) => {
                let slots = pool.classes().map(|(size, leases)| u64::from(size) * u64::from(leases.count()));
                (pool.page_size(), slots.sum())
            }
            Pools::Own(given) => (4096, given.slots() * self.parties.len() as u64),
        };
        let shared = matches!(self.pools, Pools::Shared(_)); // a strict domain takes none
        let missed_huge = shared && self.asked == Pages::HugeIfThere && page <= 4096;
        Holdings { page, size, missed_huge, ..Holdings::default() }
    }

    /// Slots and bytes by party. In a strict domain the slots are the party's secret, and the bytes all that it ever used.
    fn used(&self) -> Vec<(Party, u64, u64)> {
        match &self.pools {
            Pools::Shared(pool) => {
                let all = reclaim::usage(pool).into_iter();
                all.map(|(party, usage)| (party, u64::from(usage.slots), usage.bytes)).collect()
            }
            Pools::Own(given) => given.backed().into_iter().map(|(party, bytes)| (party, 0, bytes)).collect(),
        }
    }
}

/// A house's pen. Dropping it ends the volume: what its channels counted becomes past.
#[derive(Debug)]
pub(super) struct Writer {
    ledger: Ledger,
    number: u64,
}

impl Writer {
    pub(super) fn came(&self, party: Party, who: Who) {
        self.write(|volume| drop(volume.parties.insert(party, who)));
    }

    pub(super) fn left(&self, party: Party) {
        self.write(|volume| drop(volume.parties.remove(&party)));
    }

    pub(super) fn opened(&self, number: u32, edge: Key, channel: Channel, caller: Party, callee: Party) {
        self.write(|volume| drop(volume.lines.insert(number, (Line::new(edge, channel), caller, callee))));
    }

    pub(super) fn closed(&self, number: u32) {
        let mut book = self.ledger.book();
        let line = book.volumes.get_mut(&self.number).and_then(|volume| volume.lines.remove(&number));
        line.into_iter().for_each(|(line, ..)| book.keep(line));
    }

    pub(super) fn edges(&self) -> Vec<EdgeCounters> {
        self.ledger.edges(clock::now())
    }

    fn write(&self, change: impl FnOnce(&mut Volume)) {
        if let Some(volume) = self.ledger.book().volumes.get_mut(&self.number) {
            change(volume);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut book = self.ledger.book();
        let volume = book.volumes.remove(&self.number);
        volume.into_iter().flat_map(|volume| volume.lines.into_values()).for_each(|(line, ..)| book.keep(line));
    }
}
