//! Shows connections to destinations outside as metrics. Everything is read at the scrape.
//!
//! There is a series for each function (or chain that shares) and destination that instances have, and for some that they had.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use nearpath_daemon::metrics::Registry;
use nearpath_types::FunctionId;
use nearpath_types::pool::PoolStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::machine::Machine;

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;
type Labels<'a> = [(&'static str, &'a str); 4];

/// What the machine tells of its pool, asked anew each time.
#[derive(Clone)]
pub(crate) struct PoolReport(Arc<dyn Machine>);

impl PoolReport {
    /// Of this machine; from now on the registry shows it.
    pub(crate) fn register(machine: Arc<dyn Machine>, registry: &Registry) -> Self {
        let report = Self(machine);
        registry.with(|registry| registry.register_collector(Box::new(report.clone())));
        report
    }

    /// A call of a function has arrived whose egress declares reads.
    pub(crate) fn foresee(&self, function: &FunctionId) {
        self.0.foresee(function);
    }

    /// As it is now.
    pub(crate) fn ask(&self) -> Vec<PoolStatus> {
        self.0.pool()
    }

    /// See [`Machine::rest`].
    pub(crate) fn rest(&self) {
        self.0.rest();
    }
}

impl std::fmt::Debug for PoolReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PoolReport")
    }
}

impl Collector for PoolReport {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let all = merged(self.ask());
        gauges(&mut to, &all)?;
        oldest(&mut to, &all)?;
        counters(&mut to, &all)?;
        bytes(&mut to, &all)?;
        reasons(&mut to, &all)
    }
}

/// One series for all identities of an owner at a destination: users of a database are not for labels.
fn merged(all: Vec<PoolStatus>) -> Vec<PoolStatus> {
    let mut merged: Vec<PoolStatus> = Vec::new();
    for one in all {
        match merged.last_mut().filter(|last| labels(last) == labels(&one)) {
            Some(last) => last.add(&one),
            None => merged.push(one),
        }
    }
    merged
}

fn labels(one: &PoolStatus) -> Labels<'_> {
    let PoolStatus { owner, namespace, destination, protocol, .. } = one;
    [("owner", owner), ("namespace", namespace), ("destination", destination), ("protocol", protocol)]
}

fn gauges(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    type Value = fn(&PoolStatus) -> u32;
    let gauges: [(&str, &str, Value); 5] = [
        ("nearpath_pool_connections", "Open connections to a destination outside", |one| one.open),
        ("nearpath_pool_warm", "Of these, open for nobody yet", |one| one.warm),
        ("nearpath_pool_connecting", "Of these, being opened", |one| one.connecting),
        ("nearpath_pool_waiting", "Clients that wait for a connection", |one| one.waiting),
        ("nearpath_pool_max", "Most connections with which one more is opened", |one| one.max),
    ];
    for (name, help, value) in gauges {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        all.iter().try_for_each(|one| metric.encode_family(&labels(one))?.encode_gauge(&i64::from(value(one))))?;
    }
    Ok(())
}

fn oldest(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    let help = "For how long the oldest warm connection has been open";
    let mut metric = to.encode_descriptor("nearpath_pool_oldest_seconds", help, None, MetricType::Gauge)?;
    let ages = all.iter().filter_map(|one| Some((one, one.oldest_seconds?)));
    ages.into_iter().try_for_each(|(one, age)| metric.encode_family(&labels(one))?.encode_gauge(&age))
}

fn counters(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    type Value = fn(&PoolStatus) -> u64;
    let counters: [(&str, &str, Value); 14] = [
        ("nearpath_pool_hits", "Clients that got a connection that was open already", |one| one.hits),
        ("nearpath_pool_given", "Of these, warm sockets that took the place of a function's own", |one| one.given),
        ("nearpath_pool_opened", "Connections that began with a window which their path had borne", |one| one.opened),
        ("nearpath_pool_misses", "Clients whose connection had to be opened", |one| one.misses),
        ("nearpath_pool_waits", "Clients that waited for a place below the ceiling", |one| one.waits),
        ("nearpath_pool_refused", "Clients that got no connection", |one| one.refused),
        ("nearpath_pool_failed", "Connections that the destination did not take", |one| one.failed),
        ("nearpath_pool_stale", "Warm connections found dead when they were to be handed out", |one| one.stale),
        ("nearpath_pool_resets", "Used connections cleaned for their next client", |one| one.resets),
        ("nearpath_pool_cache_hits", "Requests answered with what was kept of an earlier answer", |one| one.cache_hits),
        ("nearpath_pool_early_writes", "Writes taken before the destination had them", |one| one.early_writes),
        ("nearpath_pool_failed_writes", "Of these, what did not get there", |one| one.failed_writes),
        ("nearpath_pool_prefetch_used", "Reads issued when a call arrived, and used", |one| one.prefetch_used),
        ("nearpath_pool_prefetch_unused", "Such reads that nobody asked for in time", |one| one.prefetch_unused),
    ];
    for (name, help, value) in counters {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for one in all {
            metric.encode_family(&labels(one))?.encode_counter(&value(one), None as NoExemplar)?;
        }
    }
    Ok(())
}

fn bytes(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    let help = "Bytes to and from a destination outside, but for sockets that took the place of a function's own";
    let mut metric = to.encode_descriptor("nearpath_pool_carried_bytes", help, None, MetricType::Counter)?;
    for one in all {
        for (direction, count) in [("sent", one.sent_bytes), ("received", one.received_bytes)] {
            let [owner, namespace, destination, protocol] = labels(one);
            let labels = [owner, namespace, destination, protocol, ("direction", direction)];
            metric.encode_family(&labels)?.encode_counter(&count, None as NoExemplar)?;
        }
    }
    Ok(())
}

fn reasons(to: &mut DescriptorEncoder, all: &[PoolStatus]) -> Result<(), Error> {
    type Value = fn(&PoolStatus) -> &BTreeMap<String, u64>;
    let counters: [(&str, &str, Value); 2] = [
        ("nearpath_pool_pins", "Clients that had to keep a connection until they left", |one| &one.pins),
        ("nearpath_pool_passed", "Calls for which no warm socket took the place of a function's own", |one| {
            &one.passed
        }),
    ];
    for (name, help, value) in counters {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (one, (why, count)) in all.iter().flat_map(|one| value(one).iter().map(move |counted| (one, counted))) {
            let [owner, namespace, destination, protocol] = labels(one);
            let labels = [owner, namespace, destination, protocol, ("reason", why.as_str())];
            metric.encode_family(&labels)?.encode_counter(count, None as NoExemplar)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(Vec<PoolStatus>);

    impl Collector for Fixed {
        fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
            let all = merged(self.0.clone());
            gauges(&mut to, &all)?;
            oldest(&mut to, &all)?;
            counters(&mut to, &all)?;
            bytes(&mut to, &all)?;
            reasons(&mut to, &all)
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
        let other = PoolStatus { identity: "root".into(), ..one.clone() };
        let registry = Registry::default();
        registry.with(|registry| registry.register_collector(Box::new(Fixed(vec![one, other]))));
        let text = registry.encode();
        let labels = r#"owner="cart.dev",namespace="dev",destination="db:5432",protocol="postgres""#;
        for line in [
            format!("nearpath_pool_connections{{{labels}}} 6"),
            format!("nearpath_pool_hits_total{{{labels}}} 14"),
            format!("nearpath_pool_carried_bytes_total{{{labels},direction=\"sent\"}} 10"),
            format!("nearpath_pool_pins_total{{{labels},reason=\"LISTEN\"}} 4"),
            format!("nearpath_pool_oldest_seconds{{{labels}}} 1.5"),
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in:\n{text}");
        }
        assert!(!text.contains("shop"), "who logs in is not shown");
    }
}
