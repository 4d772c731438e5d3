//! Permissions and counters of instances behind a forwarder.
//!
//! Each instance reaches only the gateway; its watchdog also reaches those of callees over QUIC.
//! Traffic between an instance and the gateway is counted for its function. The kernel counts, and
//! the maps are read only at a scrape and when an instance ends.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_daemon::metrics::{MetricsRegistry, encode_totals};
use nearpath_kernel::bpf::{Forwarder, PacketCounters, PairCounters};
use nearpath_types::{Eip, FunctionId};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Functions without instances whose counters are kept.
const MAX_PAST_FUNCTIONS: usize = 1_024;

/// Traffic to a function's instances, and from them.
type DirectionCounters = [PairCounters; 2];

/// A node's forwarder and the attached instances. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct NodeForwarder(Arc<ForwarderShared>);

#[derive(Debug)]
struct ForwarderShared {
    forwarder: Arc<Forwarder>,
    gateway: Eip,
    stats: Mutex<ForwarderStats>,
}

/// Living instances, and counters of ended ones. Lock order: before the forwarder's own lock.
#[derive(Debug, Default)]
struct ForwarderStats {
    live: BTreeMap<Eip, FunctionId>,
    past: BTreeMap<FunctionId, DirectionCounters>,
}

/// Permission of an instance to reach the gateway; ends when dropped.
#[derive(Debug)]
pub(crate) struct GatewayPermit {
    forwarder: NodeForwarder,
    eip: Eip,
}

/// Permission of two instances' watchdogs to reach each other; ends when dropped.
#[derive(Debug)]
pub(crate) struct PairPermit {
    forwarder: NodeForwarder,
    ends: (Eip, Eip),
}

impl NodeForwarder {
    /// Wraps a forwarder to which only the gateway is attached, and adds its counters to a
    /// registry.
    pub(crate) fn new(forwarder: Arc<Forwarder>, gateway: Eip, registry: &MetricsRegistry) -> Self {
        let forwarder = Self(Arc::new(ForwarderShared {
            forwarder,
            gateway,
            stats: Mutex::default(),
        }));
        registry.with(|registry| registry.register_collector(Box::new(forwarder.clone())));
        forwarder
    }

    /// Returns the forwarder for an instance's veth pair.
    pub(crate) fn kernel_forwarder(&self) -> Arc<Forwarder> {
        Arc::clone(&self.0.forwarder)
    }

    /// Permits traffic between an instance and the gateway, once the instance is attached.
    ///
    /// # Errors
    /// Fails when the forwarder's table is full.
    pub(crate) fn admit_instance(
        &self,
        eip: Eip,
        function: &FunctionId,
    ) -> io::Result<GatewayPermit> {
        self.lock_stats().live.insert(eip, function.clone());
        // Made before the permission, so that a failure still removes the entry.
        let permit = GatewayPermit {
            forwarder: self.clone(),
            eip,
        };
        self.0.forwarder.allow_pair(self.0.gateway, eip)?;
        Ok(permit)
    }

    /// Permits datagrams between the watchdogs of two instances, from `port` to `port`.
    ///
    /// # Errors
    /// Fails like [`admit_instance`](Self::admit_instance).
    pub(crate) fn permit_pair(&self, one: Eip, other: Eip, port: u16) -> io::Result<PairPermit> {
        self.0.forwarder.allow_udp_port(one, other, port)?;
        Ok(PairPermit {
            forwarder: self.clone(),
            ends: (one, other),
        })
    }

    fn remove_instance(&self, eip: Eip) {
        let mut stats = self.lock_stats();
        // Detaching removes the routes, and with them the counters.
        let counters = self.instance_counters(eip);
        self.0.forwarder.forbid_pair(self.0.gateway, eip);
        // The device disappears with its namespace; the entry would outlive it.
        self.0.forwarder.detach_device(eip);
        if let Some(function) = stats.live.remove(&eip) {
            stats.add_past(function, counters);
        }
    }

    fn instance_counters(&self, eip: Eip) -> DirectionCounters {
        let ForwarderShared {
            forwarder, gateway, ..
        } = &*self.0;
        [
            forwarder.pair_counters(*gateway, eip),
            forwarder.pair_counters(eip, *gateway),
        ]
    }

    /// Returns the traffic of each function's instances, ended ones included.
    fn function_counters(&self) -> BTreeMap<FunctionId, DirectionCounters> {
        // Held while the kernel's counters are read: an instance must not move to `past` in
        // between.
        let stats = self.lock_stats();
        let mut all = stats.past.clone();
        for (eip, function) in &stats.live {
            let sum = all.entry(function.clone()).or_default();
            *sum = add_counters(*sum, self.instance_counters(*eip));
        }
        all
    }

    fn lock_stats(&self) -> MutexGuard<'_, ForwarderStats> {
        self.0.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ForwarderStats {
    /// Adds to the counters of a function. At the limit, a function without instances is forgotten.
    fn add_past(&mut self, function: FunctionId, counters: DirectionCounters) {
        if self.past.len() >= MAX_PAST_FUNCTIONS && !self.past.contains_key(&function) {
            let forgotten = self
                .past
                .keys()
                .find(|known| self.live.values().all(|live| live != *known))
                .cloned();
            forgotten.map(|forgotten| self.past.remove(&forgotten));
        }
        let sum = self.past.entry(function).or_default();
        *sum = add_counters(*sum, counters);
    }
}

fn add_counters(a: DirectionCounters, b: DirectionCounters) -> DirectionCounters {
    let one = |a: PairCounters, b: PairCounters| PairCounters {
        packets: a.packets + b.packets,
        bytes: a.bytes + b.bytes,
    };
    [one(a[0], b[0]), one(a[1], b[1])]
}

impl Drop for GatewayPermit {
    fn drop(&mut self) {
        self.forwarder.remove_instance(self.eip);
    }
}

impl Drop for PairPermit {
    fn drop(&mut self) {
        let (one, other) = self.ends;
        self.forwarder.0.forwarder.forbid_pair(one, other);
    }
}

impl Collector for NodeForwarder {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode_outcomes(&mut to, self.0.forwarder.packet_counters())?;
        let functions = self.function_counters();
        type Value = fn(&PairCounters) -> u64;
        let both: [(&str, &str, Value); 2] = [
            (
                "nearpath_forward_packets",
                "Packets between gateway and instances through the forwarder",
                |c| c.packets,
            ),
            (
                "nearpath_forward_bytes",
                "Bytes of these, Ethernet headers included",
                |c| c.bytes,
            ),
        ];
        for (name, help, value) in both {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (function, counters) in &functions {
                for (direction, counters) in ["to", "from"].into_iter().zip(counters) {
                    let labels = [
                        ("function", function.to_string()),
                        ("direction", direction.to_owned()),
                    ];
                    // Read from the kernel at each scrape, so there is no counter to keep.
                    ConstCounter::new(value(counters)).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_outcomes(
    to: &mut DescriptorEncoder<'_>,
    packets: PacketCounters,
) -> Result<(), fmt::Error> {
    let PacketCounters {
        forwarded,
        arp_replies: answered,
        denied,
        forged_source: forged,
        unsupported: foreign,
        ttl_expired: expired,
    } = packets;
    let totals = [
        (
            "nearpath_packets_forwarded",
            "Packets delivered to another namespace",
            forwarded,
        ),
        (
            "nearpath_packets_answered",
            "ARP requests answered",
            answered,
        ),
        (
            "nearpath_packets_denied",
            "Packets dropped or reset: the destination is absent or not allowed",
            denied,
        ),
        (
            "nearpath_packets_forged",
            "Packets dropped: the source is forged",
            forged,
        ),
        (
            "nearpath_packets_foreign",
            "Packets dropped: neither IPv4 nor an ARP request",
            foreign,
        ),
        (
            "nearpath_packets_expired",
            "Packets dropped: the time to live expired",
            expired,
        ),
    ];
    encode_totals(to, &totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_id(number: usize) -> FunctionId {
        format!("f{number}").parse().unwrap()
    }

    fn one_transfer() -> DirectionCounters {
        [
            PairCounters {
                packets: 1,
                bytes: 60,
            },
            PairCounters {
                packets: 2,
                bytes: 120,
            },
        ]
    }

    #[test]
    fn past_counters_add_up_and_are_bounded() {
        let mut stats = ForwarderStats::default();
        stats
            .live
            .insert(Eip([10, 62, 0, 2].into()), function_id(0));
        (0..MAX_PAST_FUNCTIONS)
            .for_each(|number| stats.add_past(function_id(number), one_transfer()));
        stats.add_past(function_id(0), one_transfer());
        assert_eq!(
            stats.past[&function_id(0)],
            add_counters(one_transfer(), one_transfer())
        );
        (0..10).for_each(|number| {
            stats.add_past(function_id(MAX_PAST_FUNCTIONS + number), one_transfer())
        });
        assert_eq!(stats.past.len(), MAX_PAST_FUNCTIONS);
        assert!(
            stats.past.contains_key(&function_id(0)),
            "functions with instances are kept"
        );
        assert!(
            stats
                .past
                .contains_key(&function_id(MAX_PAST_FUNCTIONS + 9)),
            "the newest function is kept"
        );
    }
}
