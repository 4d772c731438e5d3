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
    early_calls: AtomicU64,
    /// Answered calls that went later.
    later_calls: AtomicU64,
    /// Calls to instances that did not answer over UDP.
    silent_calls: AtomicU64,
    /// Lines that were opened before anybody called on them.
    opened_ahead: AtomicU64,
    /// UDP got through, and nothing says that it does not any more.
    udp_is_proven: AtomicBool,
}

impl QuicTotals {
    /// A call was answered.
    pub(crate) fn note_answered(&self, is_early: bool) {
        let count = if is_early {
            &self.early_calls
        } else {
            &self.later_calls
        };
        count.fetch_add(1, Ordering::Relaxed);
        if !self.is_udp_proven() {
            self.udp_is_proven.store(true, Ordering::Relaxed);
        }
    }

    /// An instance did not answer.
    pub(crate) fn note_silence(&self) {
        self.silent_calls.fetch_add(1, Ordering::Relaxed);
        self.udp_is_proven.store(false, Ordering::Relaxed);
    }

    /// A line was opened ahead of calls.
    pub(crate) fn note_opened_ahead(&self) {
        self.opened_ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether UDP gets through, as far as is known.
    pub(crate) fn is_udp_proven(&self) -> bool {
        self.udp_is_proven.load(Ordering::Relaxed)
    }

    pub(super) fn encode_metrics(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Calls over QUIC that were answered, by whether they went in their connection's first flight";
        let mut calls =
            to.encode_descriptor("nearpath_quic_calls", help, None, MetricType::Counter)?;
        for (flight, count) in [("first", &self.early_calls), ("later", &self.later_calls)] {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(calls.encode_family(&[("flight", flight)])?)?;
        }
        let silent = "Calls to instances that did not answer over UDP: they went another way, or failed where that could have run them twice";
        let ahead =
            "Connections that were opened when an instance became ready, before anybody called it";
        let counters = [
            ("nearpath_quic_silent", silent, &self.silent_calls),
            ("nearpath_quic_opened_ahead", ahead, &self.opened_ahead),
        ];
        for (name, help, count) in counters {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}
