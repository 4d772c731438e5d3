//! The kernel's part of domains whose descriptors it carries (`nearpath.io/delivery: sockmap`), and what it counts there.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nearpath_daemon::metrics::Registry;
use nearpath_domain::Party;
use nearpath_domain::hub;
use nearpath_kernel::bpf::{Counts, Exchange};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

/// All exchanges of this node. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exchanges(Arc<Mutex<Book>>);

/// Those that are, and what those counted that were.
#[derive(Debug, Default)]
struct Book {
    live: Vec<Weak<Kernel>>,
    past: Counts,
}

/// One domain's.
#[derive(Debug)]
struct Kernel {
    exchange: Exchange,
    book: Exchanges,
}

impl Exchanges {
    /// None yet; what will be counted is shown from now on.
    pub(crate) fn new(registry: &Registry) -> Self {
        let exchanges = Self::default();
        registry.with(|r| r.register_collector(Box::new(exchanges.clone())));
        exchanges
    }

    /// One for a new domain.
    ///
    /// # Errors
    /// What this machine or build lacks for it.
    pub(crate) fn open(&self) -> io::Result<Arc<dyn hub::Exchange>> {
        let kernel = Arc::new(Kernel { exchange: Exchange::create()?, book: self.clone() });
        self.book(|book| book.live.push(Arc::downgrade(&kernel)));
        Ok(kernel)
    }

    fn counts(&self) -> Counts {
        // Out of the lock: whoever is the last to hold one here ends it, and that takes the lock.
        let (live, past) = self.book(|book| (book.live.clone(), book.past));
        let live = live.iter().filter_map(Weak::upgrade).map(|kernel| kernel.exchange.counts());
        live.fold(past, add)
    }

    fn book<T>(&self, read: impl FnOnce(&mut Book) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn add(a: Counts, b: Counts) -> Counts {
    Counts {
        delivered: a.delivered + b.delivered,
        denied: a.denied + b.denied,
        absent: a.absent + b.absent,
        malformed: a.malformed + b.malformed,
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let counts = self.exchange.counts();
        self.book.book(|book| {
            book.live.retain(|kernel| kernel.strong_count() > 0);
            book.past = add(book.past, counts);
        });
    }
}

impl hub::Exchange for Kernel {
    fn seat(&self, party: Party) -> io::Result<[OwnedFd; 2]> {
        self.exchange.seat(party.get()).map(|seat| [seat.party, seat.node])
    }

    fn unseat(&self, party: Party) {
        self.exchange.unseat(party.get());
    }

    fn permit(&self, from: Party, channel: u32, to: Party) -> io::Result<()> {
        self.exchange.permit(from.get(), channel, to.get())
    }

    fn revoke(&self, from: Party, channel: u32) {
        self.exchange.revoke(from.get(), channel);
    }
}

impl Collector for Exchanges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Counts { delivered, denied, absent, malformed } = self.counts();
        let all = [
            ("delivered", "Descriptors that the kernel carried to their receiver", delivered),
            ("denied", "Descriptors that were no right of their sender, or none at all", denied + malformed),
            ("absent", "Descriptors to a party that is gone", absent),
        ];
        for (what, help, count) in all {
            let counter = ConstCounter::new(count);
            let name = format!("nearpath_descriptors_{what}");
            counter.encode(encoder.encode_descriptor(&name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}
