//! Metrics of edges and shared memory, read at each scrape.
//!
//! Totals of a function or chain are sums over edges: `sum by (callee)`, `sum by (chain)`, without those of
//! the caller `gateway`, which has delivered calls of functions, too. A series exists for each present edge,
//! and for an hour for each past one in shared memory (at most 1024 per chain). Endpoints cannot create series.

use std::fmt::Error;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::chain_status::{EdgeStatus, HolderStatus, MemoryStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::domain_stats::DomainStats;

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;
type Labels<'a> = [(&'static str, &'a str); 4];

/// Reads the counters at each scrape.
#[derive(Debug)]
struct DomainCollector(DomainStats);

/// Adds the counters to a registry.
pub(crate) fn register_collector(stats: DomainStats, registry: &MetricsRegistry) {
    registry.with(|registry| registry.register_collector(Box::new(DomainCollector(stats))));
}

impl Collector for DomainCollector {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let edges = self.0.edge_status();
        encode_counters(&mut to, &edges)?;
        encode_in_flight(&mut to, &edges)?;
        encode_durations(&mut to, &edges)?;
        let memory = self.0.memory_status();
        encode_pools(&mut to, &memory)?;
        encode_holders(&mut to, &memory)
    }
}

fn edge_labels(edge: &EdgeStatus) -> Labels<'_> {
    let EdgeStatus {
        chain,
        namespace,
        caller,
        callee,
        ..
    } = edge;
    [
        ("chain", chain),
        ("namespace", namespace),
        ("caller", caller),
        ("callee", callee),
    ]
}

fn encode_counters(to: &mut DescriptorEncoder, edges: &[EdgeStatus]) -> Result<(), Error> {
    type Value = fn(&EdgeStatus) -> u64;
    let plain: [(&str, &str, Value); 2] = [
        (
            "nearpath_edge_requests",
            "Finished calls along an edge, over all paths",
            |e| e.requests,
        ),
        (
            "nearpath_edge_failed",
            "Of these, with a response of 500 or above, or none",
            |e| e.failed,
        ),
    ];
    for (name, help, value) in plain {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for edge in edges {
            metric
                .encode_family(&edge_labels(edge))?
                .encode_counter(&value(edge), None as NoExemplar)?;
        }
    }
    let both: [(&str, &str, [Value; 2]); 2] = [
        (
            "nearpath_edge_messages",
            "Messages through shared memory",
            [|e| e.call_messages, |e| e.answer_messages],
        ),
        (
            "nearpath_edge_bytes",
            "Bytes of these messages, envelopes included, and of bodies of calls by way of the gateway",
            [|e| e.call_bytes, |e| e.answer_bytes],
        ),
    ];
    for (name, help, values) in both {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (edge, (direction, value)) in edges.iter().flat_map(|e| {
            ["call", "answer"]
                .into_iter()
                .zip(values)
                .map(move |v| (e, v))
        }) {
            let [chain, namespace, caller, callee] = edge_labels(edge);
            let labels = [chain, namespace, caller, callee, ("direction", direction)];
            metric
                .encode_family(&labels)?
                .encode_counter(&value(edge), None as NoExemplar)?;
        }
    }
    Ok(())
}

fn encode_in_flight(to: &mut DescriptorEncoder, edges: &[EdgeStatus]) -> Result<(), Error> {
    let help = "Open calls along an edge, over all paths";
    let mut metric =
        to.encode_descriptor("nearpath_edge_in_flight", help, None, MetricType::Gauge)?;
    edges.iter().try_for_each(|edge| {
        metric
            .encode_family(&edge_labels(edge))?
            .encode_gauge(&edge.in_flight)
    })
}

/// Encodes latency histograms. The count is the sum of the buckets, so both match whatever an
/// endpoint wrote.
fn encode_durations(to: &mut DescriptorEncoder, edges: &[EdgeStatus]) -> Result<(), Error> {
    let help =
        "Duration of calls along an edge in seconds, measured by the caller, or by the gateway";
    let mut metric = to.encode_descriptor(
        "nearpath_edge_duration_seconds",
        help,
        None,
        MetricType::Histogram,
    )?;
    for edge in edges {
        let buckets: Vec<_> = edge
            .latency
            .iter()
            .map(|b| (b.below.unwrap_or(f64::INFINITY), b.count))
            .collect();
        let count = buckets
            .iter()
            .fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        let labels = edge_labels(edge);
        let mut metric = metric.encode_family(&labels)?;
        metric.encode_histogram::<[(&str, &str); 0]>(edge.seconds, count, &buckets, None)?;
    }
    Ok(())
}

fn encode_pools(to: &mut DescriptorEncoder, all: &[MemoryStatus]) -> Result<(), Error> {
    type Value = fn(&MemoryStatus) -> u64;
    let gauges: [(&str, &str, Value); 5] = [
        ("nearpath_shm_size_bytes", "Bytes of a chain's slots", |m| {
            m.size_bytes
        }),
        ("nearpath_shm_used_bytes", "Bytes of slots in use", |m| {
            m.used_bytes
        }),
        (
            "nearpath_shm_dead_bytes",
            "Of these, bytes of endpoints that have died",
            |m| m.dead_bytes,
        ),
        (
            "nearpath_shm_page_bytes",
            "Page size of the shared memory in bytes",
            |m| m.page_bytes,
        ),
        (
            "nearpath_shm_huge_pages_unavailable",
            "1 if huge pages were requested but unavailable",
            |m| m.huge_pages_unavailable.into(),
        ),
    ];
    for (name, help, value) in gauges {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for one in all {
            let labels = [("chain", one.chain.as_str()), ("namespace", &one.namespace)];
            metric.encode_family(&labels)?.encode_gauge(&value(one))?;
        }
    }
    Ok(())
}

fn encode_holders(to: &mut DescriptorEncoder, all: &[MemoryStatus]) -> Result<(), Error> {
    type Value = fn(&HolderStatus) -> u64;
    let gauges: [(&str, &str, Value); 3] = [
        (
            "nearpath_shm_bytes",
            "Bytes of slots that a function holds",
            |h| h.bytes,
        ),
        (
            "nearpath_shm_max_held_bytes",
            "Bytes of slots that a function may hold",
            |h| h.max_held_bytes,
        ),
        (
            "nearpath_shm_endpoints",
            "Endpoints of a function: threads that send and receive",
            |h| h.endpoints,
        ),
    ];
    for (name, help, value) in gauges {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (one, holder) in all
            .iter()
            .flat_map(|one| one.holders.iter().map(move |holder| (one, holder)))
        {
            let labels = [
                ("chain", one.chain.as_str()),
                ("namespace", &one.namespace),
                ("function", &holder.function),
            ];
            metric
                .encode_family(&labels)?
                .encode_gauge(&value(holder))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_domain::endpoint::{self, blocking::BlockingEndpoint};
    use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
    use nearpath_domain::{CallDestination, CallRequest, CallResponse, packet};
    use nearpath_types::{FunctionId, InstanceId};
    use std::os::fd::OwnedFd;

    fn function_id(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    fn admitted_socket(hub: &DomainHandle, instance: u64, name: &str) -> OwnedFd {
        let (ours, theirs) = packet::socket_pair().unwrap();
        hub.admit_instance(
            InstanceId(instance),
            function_id(name),
            EndpointSocket::Connected(ours),
        );
        theirs
    }

    /// Makes `times` calls, and returns after the last response.
    fn make_calls(hub: &DomainHandle, times: usize) -> BlockingEndpoint {
        hub.declare_edges([(function_id("front"), function_id("back"))]);
        let served = admitted_socket(hub, 2, "back");
        std::thread::spawn(move || {
            let mut post =
                BlockingEndpoint::join(served, endpoint::EndpointSettings::default()).unwrap();
            let _ = post.serve_calls(|_, _| CallResponse {
                status: 500,
                ..CallResponse::default()
            }); // ends with the domain
        });
        let settings = endpoint::EndpointSettings {
            serves: false,
            ..endpoint::EndpointSettings::default()
        };
        let mut front = BlockingEndpoint::join(admitted_socket(hub, 1, "front"), settings).unwrap();
        nearpath_testkit::eventually_blocking("the callee joins", || {
            !front.callable_functions().is_empty()
        });
        for _ in 0..times {
            front
                .call(
                    CallDestination::Function(&function_id("back")),
                    &CallRequest::default(),
                )
                .unwrap();
        }
        front
    }

    fn series_of<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        text.lines()
            .filter(|line| line.starts_with(&format!("{name}{{")))
            .collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_scrape_shows_every_call() {
        let (stats, registry) = (DomainStats::default(), MetricsRegistry::default());
        register_collector(stats.clone(), &registry);
        assert!(
            !registry.encode().contains("shop"),
            "without edges there are no series"
        );
        let (hub, _faults) = DomainHandle::start_with(
            DomainSettings::named("shop.openfaas-fn"),
            &stats.stats_of("shop.openfaas-fn"),
        )
        .unwrap();
        let front = tokio::task::block_in_place(|| make_calls(&hub, 7));
        let text = registry.encode();
        let edge = r#"chain="shop",namespace="openfaas-fn",caller="front.openfaas-fn",callee="back.openfaas-fn""#;
        for line in [
            format!("nearpath_edge_requests_total{{{edge}}} 7"),
            format!("nearpath_edge_failed_total{{{edge}}} 7"),
            format!("nearpath_edge_messages_total{{{edge},direction=\"call\"}} 7"),
            format!("nearpath_edge_messages_total{{{edge},direction=\"answer\"}} 7"),
            format!("nearpath_edge_in_flight{{{edge}}} 0"),
            format!("nearpath_edge_duration_seconds_count{{{edge}}} 7"),
            format!("nearpath_edge_duration_seconds_bucket{{le=\"+Inf\",{edge}}} 7"),
            r#"nearpath_shm_endpoints{chain="shop",namespace="openfaas-fn",function="front.openfaas-fn"} 1"#.to_owned(),
            r#"nearpath_shm_page_bytes{chain="shop",namespace="openfaas-fn"} 4096"#.to_owned(),
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line} is missing in:\n{text}");
        }
        assert_eq!(
            series_of(&text, "nearpath_edge_requests_total").len(),
            1,
            "one series per edge"
        );
        assert_eq!(
            series_of(&text, "nearpath_edge_duration_seconds_bucket").len(),
            10
        );
        hub.stop().await;
        let text = registry.encode();
        assert!(
            text.contains(&format!("nearpath_edge_requests_total{{{edge}}} 7")),
            "the edge stays for its retention time"
        );
        assert!(
            series_of(&text, "nearpath_shm_endpoints").is_empty(),
            "the memory is released"
        );
        drop(front);
    }

    #[test]
    fn the_largest_numbers_are_encoded() {
        use nearpath_types::chain_status::LatencyBucket;
        let huge = nearpath_domain::node_side::MAX_COUNTER;
        let bucket = |k: i32| LatencyBucket {
            below: (k < 9).then_some(f64::from(k + 1)),
            count: huge,
        };
        let edge = EdgeStatus {
            requests: huge,
            latency: (0..10).map(bucket).collect(),
            ..EdgeStatus::default()
        };
        #[derive(Debug)]
        struct One(EdgeStatus);
        impl Collector for One {
            fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
                encode_durations(&mut to, std::slice::from_ref(&self.0))
            }
        }
        let registry = MetricsRegistry::default();
        registry.with(|registry| registry.register_collector(Box::new(One(edge))));
        let last = format!(
            "le=\"+Inf\",chain=\"\",namespace=\"\",caller=\"\",callee=\"\"}} {}",
            10 * huge
        );
        assert!(registry.encode().contains(&last), "{}", registry.encode());
    }
}
