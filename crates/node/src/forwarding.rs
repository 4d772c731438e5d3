//! Instances whose packets a forwarder moves: each talks to the gateway, its watchdog also to the watchdogs of those that it may call over QUIC, and nobody to
//! anybody else. What an instance sends to the gateway and gets from there is counted for its function.
//!
//! The kernel counts; the maps are read at a scrape and when an instance ends, between these nothing runs.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_daemon::metrics::Registry;
use nearpath_kernel::bpf::{Carried, Forwarder, Packets};
use nearpath_types::{Eip, FunctionId};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// As many functions without an instance are remembered.
const REMEMBERED: usize = 1_024;

/// To a function's instances, and from them.
type Both = [Carried; 2];

/// A node's forwarder and who hangs on it. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Forwarding(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    forwarder: Arc<Forwarder>,
    gateway: Eip,
    book: Mutex<Book>,
}

/// Whose instances are there, and what those carried that were. Held before the forwarder's own lock, never after it.
#[derive(Debug, Default)]
struct Book {
    live: BTreeMap<Eip, FunctionId>,
    past: BTreeMap<FunctionId, Both>,
}

/// An instance's right to talk to the gateway; ends when dropped.
#[derive(Debug)]
pub(crate) struct Passage {
    of: Forwarding,
    eip: Eip,
}

/// The right of two instances' watchdogs to reach each other; ends when dropped.
#[derive(Debug)]
pub(crate) struct Bridge {
    of: Forwarding,
    ends: (Eip, Eip),
}

impl Forwarding {
    /// Nobody hangs on it yet but the gateway; what it counts is shown from now on.
    pub(crate) fn new(forwarder: Arc<Forwarder>, gateway: Eip, registry: &Registry) -> Self {
        let forwarding = Self(Arc::new(Shared { forwarder, gateway, book: Mutex::default() }));
        registry.with(|registry| registry.register_collector(Box::new(forwarding.clone())));
        forwarding
    }

    /// What an instance's pair is to be guarded by.
    pub(crate) fn forwarder(&self) -> Arc<Forwarder> {
        Arc::clone(&self.0.forwarder)
    }

    /// Lets an instance and the gateway talk to each other, once the instance is there.
    ///
    /// # Errors
    /// When the forwarder's table is full.
    pub(crate) fn admit(&self, eip: Eip, function: &FunctionId) -> io::Result<Passage> {
        self.book().live.insert(eip, function.clone());
        let passage = Passage { of: self.clone(), eip };
        self.0.forwarder.allow(self.0.gateway, eip)?;
        Ok(passage)
    }

    /// Lets the watchdogs of two instances reach each other, from `port` to `port`.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub(crate) fn join(&self, one: Eip, other: Eip, port: u16) -> io::Result<Bridge> {
        self.0.forwarder.allow_datagrams(one, other, port)?;
        Ok(Bridge { of: self.clone(), ends: (one, other) })
    }

    fn leave(&self, eip: Eip) {
        let mut book = self.book();
        let carried = self.carried(eip);
        self.0.forwarder.forbid(self.0.gateway, eip);
        self.0.forwarder.detach(eip);
        if let Some(function) = book.live.remove(&eip) {
            book.remember(function, carried);
        }
    }

    fn carried(&self, eip: Eip) -> Both {
        let Shared { forwarder, gateway, .. } = &*self.0;
        [forwarder.carried(*gateway, eip), forwarder.carried(eip, *gateway)]
    }

    /// What each function's instances carried, those that are gone included.
    fn functions(&self) -> BTreeMap<FunctionId, Both> {
        let book = self.book();
        let mut all = book.past.clone();
        for (eip, function) in &book.live {
            let sum = all.entry(function.clone()).or_default();
            *sum = add(*sum, self.carried(*eip));
        }
        all
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Adds to what a function carried. Somebody that has no instance any more is forgotten when there are too many.
    fn remember(&mut self, function: FunctionId, carried: Both) {
        if self.past.len() >= REMEMBERED && !self.past.contains_key(&function) {
            let gone = self.past.keys().find(|known| self.live.values().all(|live| live != *known)).cloned();
            gone.map(|gone| self.past.remove(&gone));
        }
        let sum = self.past.entry(function).or_default();
        *sum = add(*sum, carried);
    }
}

fn add(a: Both, b: Both) -> Both {
    let one = |a: Carried, b: Carried| Carried { packets: a.packets + b.packets, bytes: a.bytes + b.bytes };
    [one(a[0], b[0]), one(a[1], b[1])]
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.of.leave(self.eip);
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let (one, other) = self.ends;
        self.of.0.forwarder.forbid(one, other);
    }
}

impl Collector for Forwarding {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        outcomes(&mut to, self.0.forwarder.packets())?;
        let functions = self.functions();
        type Value = fn(&Carried) -> u64;
        let both: [(&str, &str, Value); 2] = [
            ("nearpath_forward_packets", "Packets between gateway and instances, past the switch's stack", |c| {
                c.packets
            }),
            ("nearpath_forward_bytes", "Bytes of these, Ethernet headers included", |c| c.bytes),
        ];
        for (name, help, value) in both {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (function, carried) in &functions {
                for (direction, carried) in ["to", "from"].into_iter().zip(carried) {
                    let labels = [("function", function.to_string()), ("direction", direction.to_owned())];
                    ConstCounter::new(value(carried)).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn outcomes(to: &mut DescriptorEncoder<'_>, packets: Packets) -> Result<(), fmt::Error> {
    let Packets { forwarded, answered, denied, forged, foreign, expired } = packets;
    let all = [
        ("forwarded", "Packets that the forwarder carried to another station", forwarded),
        ("answered", "ARP requests that the forwarder answered", answered),
        ("denied", "Packets dropped or refused: to a station that is not there or not allowed", denied),
        ("forged", "Packets dropped: the source is not their sender's", forged),
        ("foreign", "Packets dropped: neither IPv4 nor an ARP request", foreign),
        ("expired", "Packets dropped: their time to live is over", expired),
    ];
    for (what, help, count) in all {
        let counter = ConstCounter::new(count);
        let name = format!("nearpath_packets_{what}");
        counter.encode(to.encode_descriptor(&name, help, None, counter.metric_type())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> FunctionId {
        format!("f{number}").parse().unwrap()
    }

    fn once() -> Both {
        [Carried { packets: 1, bytes: 60 }, Carried { packets: 2, bytes: 120 }]
    }

    #[test]
    fn what_was_carried_adds_up_and_is_bounded() {
        let mut book = Book::default();
        book.live.insert(Eip([10, 62, 0, 2].into()), id(0));
        (0..REMEMBERED).for_each(|number| book.remember(id(number), once()));
        book.remember(id(0), once());
        assert_eq!(book.past[&id(0)], add(once(), once()));
        (0..10).for_each(|number| book.remember(id(REMEMBERED + number), once()));
        assert_eq!(book.past.len(), REMEMBERED);
        assert!(book.past.contains_key(&id(0)), "it has an instance");
        assert!(book.past.contains_key(&id(REMEMBERED + 9)), "the last one to come");
    }
}
