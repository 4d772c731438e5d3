//! Calls over QUIC, over all functions.

use std::fmt::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// What is counted of them, and whether UDP gets through.
#[derive(Debug, Default)]
pub(crate) struct QuicTotals {
    /// Answered calls that went in a first flight.
    first: AtomicU64,
    /// Answered calls that went later.
    later: AtomicU64,
    /// Calls to instances that did not answer over UDP.
    silent: AtomicU64,
    /// Lines that were opened before anybody called on them.
    ahead: AtomicU64,
    /// UDP got through, and nothing says that it does not any more.
    proven: AtomicBool,
}

impl QuicTotals {
    /// A call was answered.
    pub(crate) fn answered(&self, first: bool) {
        let count = if first { &self.first } else { &self.later };
        count.fetch_add(1, Ordering::Relaxed);
        if !self.is_proven() {
            self.proven.store(true, Ordering::Relaxed);
        }
    }

    /// An instance did not answer.
    pub(crate) fn silence(&self) {
        self.silent.fetch_add(1, Ordering::Relaxed);
        self.proven.store(false, Ordering::Relaxed);
    }

    /// A line was opened ahead of calls.
    pub(crate) fn opened_ahead(&self) {
        self.ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether UDP gets through, as far as is known.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    pub(super) fn encode(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Calls over QUIC that were answered, by whether they went in their connection's first flight";
        let mut calls = to.encode_descriptor("nearpath_quic_calls", help, None, MetricType::Counter)?;
        for (flight, count) in [("first", &self.first), ("later", &self.later)] {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(calls.encode_family(&[("flight", flight)])?)?;
        }
        let silent = "Calls to instances that did not answer over UDP: they went another way, or failed where that could have run them twice";
        let ahead = "Connections that were opened when an instance became ready, before anybody called it";
        let counters =
            [("nearpath_quic_silent", silent, &self.silent), ("nearpath_quic_opened_ahead", ahead, &self.ahead)];
        for (name, help, count) in counters {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}
