//! Shows what the ledgers hold as metrics. Everything is read at the scrape; between scrapes nothing runs.
//!
//! A function's or a chain's totals are sums of its edges': `sum by (callee)`, `sum by (chain)`. There is a series for each
//! edge that is, and for an hour for each that was (at most 1024 a chain), never one for what a party makes up.

use std::fmt::Error;

use nearpath_daemon::metrics::Registry;
use nearpath_types::chain::{EdgeStatus, HolderStatus, MemoryStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::books::Books;

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;
type Labels<'a> = [(&'static str, &'a str); 4];

/// Reads the books at each scrape.
#[derive(Debug)]
struct DomainMetrics(Books);

/// From now on the registry shows the books.
pub(crate) fn register(books: Books, registry: &Registry) {
    registry.with(|registry| registry.register_collector(Box::new(DomainMetrics(books))));
}

impl Collector for DomainMetrics {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let edges = self.0.edges();
        counters(&mut to, &edges)?;
        in_flight(&mut to, &edges)?;
        durations(&mut to, &edges)?;
        let memory = self.0.memory();
        pools(&mut to, &memory)?;
        holders(&mut to, &memory)
    }
}

fn labels(edge: &EdgeStatus) -> Labels<'_> {
    let EdgeStatus { chain, namespace, caller, callee, .. } = edge;
    [("chain", chain), ("namespace", namespace), ("caller", caller), ("callee", callee)]
}

fn counters(to: &mut DescriptorEncoder, edges: &[EdgeStatus]) -> Result<(), Error> {
    type Value = fn(&EdgeStatus) -> u64;
    let plain: [(&str, &str, Value); 2] = [
        ("nearpath_edge_requests", "Calls past the gateway that ended", |e| e.requests),
        ("nearpath_edge_failed", "Of these, answered with 500 or above, or not at all", |e| e.failed),
    ];
    for (name, help, value) in plain {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for edge in edges {
            metric.encode_family(&labels(edge))?.encode_counter(&value(edge), None as NoExemplar)?;
        }
    }
    let both: [(&str, &str, [Value; 2]); 2] = [
        ("nearpath_edge_messages", "Messages sent through shared memory", [|e| e.call_messages, |e| e.answer_messages]),
        ("nearpath_edge_bytes", "Bytes of these, envelopes included", [|e| e.call_bytes, |e| e.answer_bytes]),
    ];
    for (name, help, values) in both {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (edge, (direction, value)) in
            edges.iter().flat_map(|e| ["call", "answer"].into_iter().zip(values).map(move |v| (e, v)))
        {
            let [chain, namespace, caller, callee] = labels(edge);
            let labels = [chain, namespace, caller, callee, ("direction", direction)];
            metric.encode_family(&labels)?.encode_counter(&value(edge), None as NoExemplar)?;
        }
    }
    Ok(())
}

fn in_flight(to: &mut DescriptorEncoder, edges: &[EdgeStatus]) -> Result<(), Error> {
    let help = "Calls past the gateway that have not ended";
    let mut metric = to.encode_descriptor("nearpath_edge_in_flight", help, None, MetricType::Gauge)?;
    edges.iter().try_for_each(|edge| metric.encode_family(&labels(edge))?.encode_gauge(&edge.in_flight))
}

/// The count is the sum of the buckets, so that it fits them whatever a party wrote.
fn durations(to: &mut DescriptorEncoder, edges: &[EdgeStatus]) -> Result<(), Error> {
    let help = "Seconds that calls past the gateway took, as the caller saw it";
    let mut metric = to.encode_descriptor("nearpath_edge_duration_seconds", help, None, MetricType::Histogram)?;
    for edge in edges {
        let buckets: Vec<_> = edge.latency.iter().map(|b| (b.below.unwrap_or(f64::INFINITY), b.count)).collect();
        let count = buckets.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        let labels = labels(edge);
        let mut metric = metric.encode_family(&labels)?;
        metric.encode_histogram::<[(&str, &str); 0]>(edge.seconds, count, &buckets, None)?;
    }
    Ok(())
}

fn pools(to: &mut DescriptorEncoder, all: &[MemoryStatus]) -> Result<(), Error> {
    type Value = fn(&MemoryStatus) -> u64;
    let gauges: [(&str, &str, Value); 5] = [
        ("nearpath_pool_size_bytes", "Bytes of a chain's slots", |m| m.size_bytes),
        ("nearpath_pool_used_bytes", "Bytes of slots that are not free", |m| m.used_bytes),
        ("nearpath_pool_dead_bytes", "Of these, those of parties that have died", |m| m.dead_bytes),
        ("nearpath_pool_page_bytes", "Bytes of a page of the pool", |m| m.page_bytes),
        ("nearpath_pool_missed_huge", "1: huge pages were asked for and there were too few", |m| m.missed_huge.into()),
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

fn holders(to: &mut DescriptorEncoder, all: &[MemoryStatus]) -> Result<(), Error> {
    type Value = fn(&HolderStatus) -> u64;
    let gauges: [(&str, &str, Value); 3] = [
        ("nearpath_pool_bytes", "Bytes of slots that a function holds", |h| h.bytes),
        ("nearpath_pool_bound_bytes", "Bytes of slots that it may hold", |h| h.bound_bytes),
        ("nearpath_pool_parties", "Its parties: threads that send and receive", |h| h.parties),
    ];
    for (name, help, value) in gauges {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (one, holder) in all.iter().flat_map(|one| one.holders.iter().map(move |holder| (one, holder))) {
            let labels = [("chain", one.chain.as_str()), ("namespace", &one.namespace), ("function", &holder.function)];
            metric.encode_family(&labels)?.encode_gauge(&value(holder))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_domain::hub::{Door, Hub, Settings};
    use nearpath_domain::post::{self, blocking::Post};
    use nearpath_domain::{Answer, Request, To, packet};
    use nearpath_types::{FunctionId, InstanceId};
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    fn id(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    fn socket(hub: &Hub, instance: u64, name: &str) -> OwnedFd {
        let (ours, theirs) = packet::pair().unwrap();
        hub.admit(InstanceId(instance), id(name), Door::Connected(ours));
        theirs
    }

    /// Calls `times` times, and returns when the answers are there.
    fn call(hub: &Hub, times: usize) -> Post {
        hub.declare([(id("front"), id("back"))]);
        let served = socket(hub, 2, "back");
        std::thread::spawn(move || {
            let mut post = Post::join(served, post::Settings::default()).unwrap();
            let _ = post.serve(|_, _| Answer { status: 500, ..Answer::default() }); // until the domain ends
        });
        let settings = post::Settings { serves: false, ..post::Settings::default() };
        let mut front = Post::join(socket(hub, 1, "front"), settings).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while front.functions().is_empty() {
            assert!(Instant::now() < end, "back never came");
            std::thread::yield_now();
        }
        for _ in 0..times {
            front.call(To::Function(&id("back")), &Request::default()).unwrap();
        }
        front
    }

    fn series<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_scrape_shows_what_was_called_exactly() {
        let (books, registry) = (Books::default(), Registry::default());
        register(books.clone(), &registry);
        assert!(!registry.encode().contains("shop"), "nothing there, nothing shown");
        let (hub, _faults) =
            Hub::start_with(Settings::named("shop.openfaas-fn"), &books.of("shop.openfaas-fn")).unwrap();
        let front = tokio::task::block_in_place(|| call(&hub, 7));
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
            r#"nearpath_pool_parties{chain="shop",namespace="openfaas-fn",function="front.openfaas-fn"} 1"#.to_owned(),
            r#"nearpath_pool_page_bytes{chain="shop",namespace="openfaas-fn"} 4096"#.to_owned(),
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in:\n{text}");
        }
        assert_eq!(series(&text, "nearpath_edge_requests_total").len(), 1, "one series an edge");
        assert_eq!(series(&text, "nearpath_edge_duration_seconds_bucket").len(), 10);
        hub.stop().await;
        let text = registry.encode();
        assert!(text.contains(&format!("nearpath_edge_requests_total{{{edge}}} 7")), "it stays for its retention");
        assert!(series(&text, "nearpath_pool_parties").is_empty(), "the pool is no more");
        drop(front);
    }

    #[test]
    fn any_numbers_are_shown_without_harm() {
        use nearpath_types::chain::Bucket;
        let huge = nearpath_domain::hub::LARGEST;
        let bucket = |k: i32| Bucket { below: (k < 9).then_some(f64::from(k + 1)), count: huge };
        let edge = EdgeStatus { requests: huge, latency: (0..10).map(bucket).collect(), ..EdgeStatus::default() };
        #[derive(Debug)]
        struct One(EdgeStatus);
        impl Collector for One {
            fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
                durations(&mut to, std::slice::from_ref(&self.0))
            }
        }
        let registry = Registry::default();
        registry.with(|registry| registry.register_collector(Box::new(One(edge))));
        let last = format!("le=\"+Inf\",chain=\"\",namespace=\"\",caller=\"\",callee=\"\"}} {}", 10 * huge);
        assert!(registry.encode().contains(&last), "{}", registry.encode());
    }
}
