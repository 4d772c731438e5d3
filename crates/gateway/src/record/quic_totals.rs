//! Counters of calls over QUIC, over all functions.

use std::fmt::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Counters of QUIC calls, and whether UDP works.
#[derive(Debug, Default)]
pub(crate) struct QuicTotals {
    /// Answered calls in a first flight.
    early_calls: AtomicU64,
    /// Answered calls after the handshake.
    later_calls: AtomicU64,
    /// Calls to instances that did not answer over UDP.
    silent_calls: AtomicU64,
    /// Connections opened ahead of calls.
    opened_ahead: AtomicU64,
    /// UDP has worked, and no failure contradicts it since.
    udp_is_proven: AtomicBool,
}

impl QuicTotals {
    /// Counts an answered call.
    pub(crate) fn note_answered(&self, is_early: bool) {
        let count = if is_early {
            &self.early_calls
        } else {
            &self.later_calls
        };
        count.fetch_add(1, Ordering::Relaxed);
        // Written on a change only, so that the cache line stays shared between threads.
        if !self.is_udp_proven() {
            self.udp_is_proven.store(true, Ordering::Relaxed);
        }
    }

    /// Counts an instance that did not answer.
    pub(crate) fn note_silence(&self) {
        self.silent_calls.fetch_add(1, Ordering::Relaxed);
        self.udp_is_proven.store(false, Ordering::Relaxed);
    }

    /// Counts a connection opened ahead of calls.
    pub(crate) fn note_opened_ahead(&self) {
        self.opened_ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether UDP works, as far as known.
    pub(crate) fn is_udp_proven(&self) -> bool {
        self.udp_is_proven.load(Ordering::Relaxed)
    }

    pub(super) fn encode_metrics(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Answered calls over QUIC, by whether they were sent in the first flight of a connection";
        let mut calls =
            to.encode_descriptor("nearpath_quic_calls", help, None, MetricType::Counter)?;
        for (flight, count) in [("first", &self.early_calls), ("later", &self.later_calls)] {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(calls.encode_family(&[("flight", flight)])?)?;
        }
        let silent = "Calls without an answer over UDP: repeated on another path, or failed if they could have run twice";
        let ahead = "Connections opened ahead of calls when an instance became ready";
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
