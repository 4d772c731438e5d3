//! Exports the counters as metrics, under OpenFaaS's names where they exist.
//!
//! Calls between functions through shared memory bypass the gateway. Each scrape reads them and
//! adds them to the gateway's counters, so that every invocation counts once. Only success or
//! failure of such a call is known, so it counts as 200 or 500.
//!
//! A call to another node counts as an invocation at the node that its caller has called. The other
//! node counts it among the calls from nodes.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Error};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use nearpath_types::chain_status::DirectCallCounts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use super::totals::GatewayTotals;
use crate::control::GatewayControl;
use crate::function::{
    BUCKET_BOUNDS_US, FunctionEntry, LatencyHistogram, RequestTally, RoutingTable,
};

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;

/// Collector that reads table and totals at each scrape.
pub(crate) struct GatewayMetrics {
    /// Routing table.
    pub table: Arc<RoutingTable>,
    /// Counters that belong to no function.
    pub totals: Arc<GatewayTotals>,
    /// Source of the calls past the gateway.
    pub control: Weak<dyn GatewayControl>,
}

impl Debug for GatewayMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("table", &self.table)
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

/// A function with its calls past the gateway.
type FunctionCalls = (Arc<FunctionEntry>, DirectCallCounts);

impl Collector for GatewayMetrics {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let mut functions = self.table.functions();
        // Scrapes are easier to compare in a fixed order; the table has none.
        functions.sort_by(|a, b| a.name.cmp(&b.name));
        self.encode_seconds(&mut to, &functions)?;
        encode_node_call_seconds(&mut to, &functions)?;
        let called: Vec<FunctionCalls> = functions
            .iter()
            .map(|function| (function.clone(), self.calls_past_gateway(function)))
            .collect();
        self.encode_invocations(&mut to, &called)?;
        self.encode_gauges(&mut to, &called)?;
        self.encode_refusals(&mut to, &functions)?;
        self.encode_connections(&mut to)?;
        self.encode_node_refusals(&mut to)?;
        self.encode_spool(&mut to)?;
        self.totals.node_calls.encode_metrics(&mut to)?;
        self.totals.events.encode_metrics(&mut to)?;
        self.totals.quic.encode_metrics(&mut to)
    }
}

impl GatewayMetrics {
    fn calls_past_gateway(&self, function: &FunctionEntry) -> DirectCallCounts {
        self.control
            .upgrade()
            .map(|control| control.near_calls(&function.id))
            .unwrap_or_default()
    }

    fn encode_seconds(
        &self,
        to: &mut DescriptorEncoder,
        functions: &[Arc<FunctionEntry>],
    ) -> Result<(), Error> {
        let help = "Seconds from the arrival of a request to the end of its response";
        let tallies = functions
            .iter()
            .map(|one| (&*one.name, one.tally.received()));
        encode_histograms(to, ("gateway_functions_seconds", help), tallies)
    }

    fn encode_invocations(
        &self,
        to: &mut DescriptorEncoder,
        functions: &[FunctionCalls],
    ) -> Result<(), Error> {
        let help = "Completed requests";
        let mut metric = to.encode_descriptor(
            "gateway_function_invocation",
            help,
            None,
            MetricType::Counter,
        )?;
        for (function, near) in functions {
            for (code, count) in counts_by_code(function, near) {
                let labels = [
                    ("function_name", &*function.name),
                    ("code", &code.to_string()),
                ];
                metric
                    .encode_family(&labels)?
                    .encode_counter(&count, None as NoExemplar)?;
            }
        }
        Ok(())
    }

    fn encode_gauges(
        &self,
        to: &mut DescriptorEncoder,
        functions: &[FunctionCalls],
    ) -> Result<(), Error> {
        type GaugeValue = fn(&FunctionEntry, &DirectCallCounts) -> u64;
        let gauges: [(&str, &str, GaugeValue); 5] = [
            // A gauge, because OpenFaaS's name lacks the suffix `_total` that OpenMetrics
            // requires of counters.
            (
                "gateway_function_invocation_started",
                "Received requests",
                |f, near| {
                    f.tally
                        .received()
                        .started_count()
                        .saturating_add(near.ended)
                        .saturating_add(near.open)
                },
            ),
            ("gateway_service_count", "Ready instances", |f, _| {
                f.route().ready.len() as u64
            }),
            ("nearpath_inflight", "Open requests", |f, near| {
                u64::from(f.tally.received().open_count()).saturating_add(near.open)
            }),
            (
                "nearpath_node_calls_inflight",
                "Open calls from other nodes",
                |f, _| {
                    let from_nodes = f.tally.node_requests();
                    from_nodes.map_or(0, |tally| u64::from(tally.open_count()))
                },
            ),
            (
                "nearpath_queued",
                "Requests waiting for an instance",
                |f, _| f.gate.load_counts().1 as u64,
            ),
        ];
        for (name, help, value) in gauges {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (function, near) in functions {
                let labels = [("function_name", &*function.name)];
                metric
                    .encode_family(&labels)?
                    .encode_gauge(&value(function, near))?;
            }
        }
        Ok(())
    }

    fn encode_refusals(
        &self,
        to: &mut DescriptorEncoder,
        functions: &[Arc<FunctionEntry>],
    ) -> Result<(), Error> {
        let help = "Requests that the platform refused, cut or lost; an empty function_name means that no function was known";
        let mut metric =
            to.encode_descriptor("nearpath_refused", help, None, MetricType::Counter)?;
        let of_functions = functions
            .iter()
            .filter_map(|function| Some((&*function.name, function.tally.refusals()?)));
        for (name, refused) in of_functions.chain([("", &self.totals.refused)]) {
            for (reason, count) in refused.nonzero_counts() {
                let labels = [("function_name", name), ("reason", reason.name())];
                metric
                    .encode_family(&labels)?
                    .encode_counter(&count, None as NoExemplar)?;
            }
        }
        Ok(())
    }

    fn encode_node_refusals(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Connections and calls of other nodes that were refused";
        let name = "nearpath_node_refusals";
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (reason, count) in &self.totals.node_refusals.borrow().by_reason {
            let labels = [("reason", *reason)];
            metric
                .encode_family(&labels)?
                .encode_counter(count, None as NoExemplar)?;
        }
        Ok(())
    }

    fn encode_connections(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let totals = &*self.totals;
        let counters = [
            (
                "nearpath_connections",
                "Connections accepted",
                &totals.connections,
            ),
            (
                "nearpath_connections_refused",
                "Connections closed on accept: their source had its share",
                &totals.connections_refused,
            ),
            (
                "nearpath_accept_errors",
                "Failed accepts of connections",
                &totals.accept_errors,
            ),
            (
                "nearpath_inline_calls",
                "Calls at functions' own ports that event loops answered without a task",
                &totals.inline_calls,
            ),
            (
                "nearpath_connections_cut",
                "Connections cut: slow or idle client, or too many stream resets",
                &totals.connections_cut,
            ),
            (
                "nearpath_http3_connections",
                "HTTP/3 connections",
                &totals.http3.connections,
            ),
            (
                "nearpath_http3_requests",
                "HTTP/3 requests",
                &totals.http3.requests,
            ),
            (
                "nearpath_http3_early",
                "HTTP/3 requests that ran in early data",
                &totals.http3.early,
            ),
            (
                "nearpath_http3_retries",
                "HTTP/3 clients that had to prove their address first",
                &totals.http3.retries,
            ),
            (
                "nearpath_http3_refused",
                "HTTP/3 clients refused because of the connection limit",
                &totals.http3.refused,
            ),
            (
                "nearpath_access_log_lost",
                "Access log lines lost: writer too slow",
                &totals.log_lines_lost,
            ),
        ];
        for (name, help, value) in counters {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter(&value.load(Ordering::Relaxed), None as NoExemplar)?;
        }
        Ok(())
    }

    fn encode_spool(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Bytes of bodies that wait in files for a slow caller";
        let mut metric =
            to.encode_descriptor("nearpath_spooled_bytes", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&self.totals.spooled_bytes.load(Ordering::Relaxed))
    }
}

/// Encodes the times of calls from other nodes.
fn encode_node_call_seconds(
    to: &mut DescriptorEncoder,
    functions: &[Arc<FunctionEntry>],
) -> Result<(), Error> {
    let help = "Seconds from the arrival of a call from another node to the end of its response";
    let tallies = functions
        .iter()
        .filter_map(|one| Some((&*one.name, one.tally.node_requests()?)));
    encode_histograms(to, ("nearpath_node_calls_seconds", help), tallies)
}

/// Encodes a histogram for each function and status.
fn encode_histograms<'a>(
    to: &mut DescriptorEncoder,
    (name, help): (&str, &str),
    tallies: impl Iterator<Item = (&'a str, &'a RequestTally)>,
) -> Result<(), Error> {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (function, tally) in tallies {
        for (code, times) in tally.by_status() {
            let labels = [("function_name", function), ("code", &code.to_string())];
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_histogram::<[(&str, &str); 0]>(
                times.sum_seconds(),
                times.total_count(),
                &histogram_buckets(times),
                None,
            )?;
        }
    }
    Ok(())
}

/// Returns completed requests by status, over all paths.
fn counts_by_code(function: &FunctionEntry, near: &DirectCallCounts) -> BTreeMap<u16, u64> {
    let mut codes: BTreeMap<u16, u64> = function
        .tally
        .received()
        .by_status()
        .map(|(code, times)| (code, times.total_count()))
        .collect();
    // Read from a region that functions share, so the two numbers may disagree for a moment.
    let failed = near.failed.min(near.ended);
    for (code, count) in [(200, near.ended - failed), (500, failed)] {
        if count > 0 {
            let all = codes.entry(code).or_default();
            *all = all.saturating_add(count);
        }
    }
    codes
}

fn histogram_buckets(times: &LatencyHistogram) -> Vec<(f64, u64)> {
    // OpenMetrics wants an explicit infinite bucket, in seconds like the others.
    let bounds = BUCKET_BOUNDS_US
        .iter()
        .map(|us| *us as f64 / 1e6)
        .chain([f64::INFINITY]);
    bounds.zip(times.bucket_counts()).collect()
}
