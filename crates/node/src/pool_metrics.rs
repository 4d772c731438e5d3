//! Metrics of connections to destinations outside, read at each scrape.
//!
//! A series exists for each function (or sharing chain) and destination of present instances, and
//! for some past ones.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::FunctionId;
use nearpath_types::pool_status::PoolStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::machine::InstanceMachine;

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;
type Labels<'a> = [(&'static str, &'a str); 4];

/// The machine's connection pool, read anew each time.
#[derive(Clone)]
pub(crate) struct PoolReport(Arc<dyn InstanceMachine>);

impl PoolReport {
    /// Wraps a machine and adds its pool to a registry.
    pub(crate) fn register(machine: Arc<dyn InstanceMachine>, registry: &MetricsRegistry) -> Self {
        let report = Self(machine);
        registry.with(|registry| registry.register_collector(Box::new(report.clone())));
        report
    }

    /// Prefetches the declared reads of a function that was called.
    pub(crate) fn prefetch(&self, function: &FunctionId) {
        self.0.prefetch(function);
    }

    /// Returns the current status.
    pub(crate) fn read_status(&self) -> Vec<PoolStatus> {
        self.0.pool_status()
    }

    /// See [`InstanceMachine::close_idle_connections`].
    pub(crate) fn close_idle_connections(&self) {
        self.0.close_idle_connections();
    }
}

impl std::fmt::Debug for PoolReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PoolReport")
    }
}

impl Collector for PoolReport {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let all = merge_identities(self.read_status());
        encode_gauges(&mut to, &all)?;
        encode_oldest(&mut to, &all)?;
        encode_counters(&mut to, &all)?;
        encode_bytes(&mut to, &all)?;
        encode_reasons(&mut to, &all)
    }
}

/// Merges all identities of an owner at a destination into one series: database users must not
/// become labels.
fn merge_identities(all: Vec<PoolStatus>) -> Vec<PoolStatus> {
    let mut merged: Vec<PoolStatus> = Vec::new();
    for one in all {
        match merged
            .last_mut()
            .filter(|last| pool_labels(last) == pool_labels(&one))
        {
            Some(last) => last.merge_epoch(&one),
            None => merged.push(one),
        }
    }
    merged
}

fn pool_labels(one: &PoolStatus) -> Labels<'_> {
    let PoolStatus {
        owner,
        namespace,
        destination,
        protocol,
        ..
    } = one;
    [
        ("owner", owner),
        ("namespace", namespace),
        ("destination", destination),
        ("protocol", protocol),
    ]
}

fn encode_gauges(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    type Value = fn(&PoolStatus) -> u32;
    let gauges: [(&str, &str, Value); 5] = [
        (
            "nearpath_pool_connections",
            "Open connections to a destination outside",
            |one| one.open,
        ),
        ("nearpath_pool_warm", "Of these, idle and unused", |one| {
            one.warm
        }),
        (
            "nearpath_pool_connecting",
            "Of these, still connecting",
            |one| one.connecting,
        ),
        (
            "nearpath_pool_waiting",
            "Clients waiting for a connection",
            |one| one.waiting,
        ),
        (
            "nearpath_pool_max",
            "Maximum number of connections",
            |one| one.max,
        ),
    ];
    for (name, help, value) in gauges {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        all.iter().try_for_each(|one| {
            metric
                .encode_family(&pool_labels(one))?
                .encode_gauge(&i64::from(value(one)))
        })?;
    }
    Ok(())
}

fn encode_oldest(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    let help = "Age of the oldest warm connection in seconds";
    let mut metric = to.encode_descriptor(
        "nearpath_pool_oldest_seconds",
        help,
        None,
        MetricType::Gauge,
    )?;
    let ages = all
        .iter()
        .filter_map(|one| Some((one, one.oldest_seconds?)));
    ages.into_iter()
        .try_for_each(|(one, age)| metric.encode_family(&pool_labels(one))?.encode_gauge(&age))
}

#[expect(clippy::too_many_lines, reason = "a table of what is collected")]
fn encode_counters(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    type Value = fn(&PoolStatus) -> u64;
    let counters: [(&str, &str, Value); 14] = [
        (
            "nearpath_pool_hits",
            "Clients that got an open connection",
            |one| one.hits,
        ),
        (
            "nearpath_pool_replaced_sockets",
            "Of these, warm sockets that replaced a function's own",
            |one| one.replaced_sockets,
        ),
        (
            "nearpath_pool_initial_windows",
            "Connections with an initial window learned from earlier ones",
            |one| one.initial_windows,
        ),
        (
            "nearpath_pool_misses",
            "Clients whose connection had to be opened",
            |one| one.misses,
        ),
        (
            "nearpath_pool_waits",
            "Clients that waited because of the limit",
            |one| one.waits,
        ),
        (
            "nearpath_pool_refused",
            "Clients that got no connection",
            |one| one.refused,
        ),
        (
            "nearpath_pool_failed",
            "Connections that the destination refused",
            |one| one.failed,
        ),
        (
            "nearpath_pool_stale",
            "Warm connections found dead at hand-out",
            |one| one.stale,
        ),
        (
            "nearpath_pool_resets",
            "Used connections reset for their next client",
            |one| one.resets,
        ),
        (
            "nearpath_pool_cache_hits",
            "Requests served from the cache",
            |one| one.cache_hits,
        ),
        (
            "nearpath_pool_early_writes",
            "Writes acknowledged before they reached the destination",
            |one| one.early_writes,
        ),
        (
            "nearpath_pool_failed_writes",
            "Of these, writes that failed",
            |one| one.failed_writes,
        ),
        (
            "nearpath_pool_prefetch_used",
            "Prefetched reads that were used",
            |one| one.prefetch_used,
        ),
        (
            "nearpath_pool_prefetch_unused",
            "Prefetched reads that were not used in time",
            |one| one.prefetch_unused,
        ),
    ];
    for (name, help, value) in counters {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for one in all {
            metric
                .encode_family(&pool_labels(one))?
                .encode_counter(&value(one), None as NoExemplar)?;
        }
    }
    Ok(())
}

fn encode_bytes(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    let help = "Bytes to and from a destination outside, without replaced sockets";
    let mut metric = to.encode_descriptor(
        "nearpath_pool_carried_bytes",
        help,
        None,
        MetricType::Counter,
    )?;
    for one in all {
        for (direction, count) in [("sent", one.sent_bytes), ("received", one.received_bytes)] {
            let [owner, namespace, destination, protocol] = pool_labels(one);
            let labels = [
                owner,
                namespace,
                destination,
                protocol,
                ("direction", direction),
            ];
            metric
                .encode_family(&labels)?
                .encode_counter(&count, None as NoExemplar)?;
        }
    }
    Ok(())
}

fn encode_reasons(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    type Value = fn(&PoolStatus) -> &BTreeMap<String, u64>;
    let counters: [(&str, &str, Value); 2] = [
        (
            "nearpath_pool_pins",
            "Clients that kept a connection until they disconnected",
            |one| &one.pins,
        ),
        (
            "nearpath_pool_pass_through",
            "Connects whose socket was not replaced by a warm one",
            |one| &one.pass_through,
        ),
    ];
    for (name, help, value) in counters {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (one, (why, count)) in all
            .iter()
            .flat_map(|one| value(one).iter().map(move |counted| (one, counted)))
        {
            let [owner, namespace, destination, protocol] = pool_labels(one);
            let labels = [
                owner,
                namespace,
                destination,
                protocol,
                ("reason", why.as_str()),
            ];
            metric
                .encode_family(&labels)?
                .encode_counter(count, None as NoExemplar)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct FixedStatus(Vec<PoolStatus>);

    impl Collector for FixedStatus {
        fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
            let all = merge_identities(self.0.clone());
            encode_gauges(&mut to, &all)?;
            encode_oldest(&mut to, &all)?;
            encode_counters(&mut to, &all)?;
            encode_bytes(&mut to, &all)?;
            encode_reasons(&mut to, &all)
        }
    }

    #[test]
    fn a_scrape_shows_each_destination_once() {
        let one = PoolStatus {
            owner: "cart.dev".into(),
            namespace: "dev".into(),
            destination: "db:5432".into(),
            protocol: "postgres".into(),
            identity: "shop@orders".into(),
            open: 3,
            hits: 7,
            sent_bytes: 5,
            pins: BTreeMap::from([("LISTEN".to_owned(), 2)]),
            oldest_seconds: Some(1.5),
            ..PoolStatus::default()
        };
        let other = PoolStatus {
            identity: "root".into(),
            ..one.clone()
        };
        let registry = MetricsRegistry::default();
        registry
            .with(|registry| registry.register_collector(Box::new(FixedStatus(vec![one, other]))));
        let text = registry.encode();
        let labels =
            r#"owner="cart.dev",namespace="dev",destination="db:5432",protocol="postgres""#;
        for line in [
            format!("nearpath_pool_connections{{{labels}}} 6"),
            format!("nearpath_pool_hits_total{{{labels}}} 14"),
            format!("nearpath_pool_carried_bytes_total{{{labels},direction=\"sent\"}} 10"),
            format!("nearpath_pool_pins_total{{{labels},reason=\"LISTEN\"}} 4"),
            format!("nearpath_pool_oldest_seconds{{{labels}}} 1.5"),
        ] {
            assert!(
                text.lines().any(|printed| printed == line),
                "{line} is missing in:\n{text}"
            );
        }
        assert!(!text.contains("shop"), "the identity is not a label");
    }
}
