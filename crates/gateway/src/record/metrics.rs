//! Shows the tallies as metrics, under OpenFaaS's names where it has one.
//!
//! What functions ask each other through shared memory passes no gateway; it is asked for at each scrape and added to what the gateway
//! counted, so that an invocation is one whichever way it came. Of such a call it is known whether it failed, not with which
//! status: it counts as 200 or 500.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Error};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use nearpath_types::chain::NearCalls;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use super::totals::Totals;
use crate::control::Control;
use crate::function::{BOUNDS_US, Function, Table, Times};

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;

/// Reads the table and the totals at each scrape.
pub(crate) struct Metrics {
    /// The functions.
    pub table: Arc<Table>,
    /// The rest.
    pub totals: Arc<Totals>,
    /// Knows of calls past the gateway.
    pub control: Weak<dyn Control>,
}

impl Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("table", &self.table).field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// A function, and what it was asked past the gateway.
type Called = (Arc<Function>, NearCalls);

impl Collector for Metrics {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let mut functions = self.table.functions();
        functions.sort_by(|a, b| a.name.cmp(&b.name));
        self.seconds(&mut to, &functions)?;
        let called: Vec<Called> = functions.iter().map(|function| (function.clone(), self.near(function))).collect();
        self.invocations(&mut to, &called)?;
        self.gauges(&mut to, &called)?;
        self.refusals(&mut to, &functions)?;
        self.connections(&mut to)?;
        self.totals.quic.encode(&mut to)
    }
}

impl Metrics {
    fn near(&self, function: &Function) -> NearCalls {
        self.control.upgrade().map(|control| control.near_calls(&function.id)).unwrap_or_default()
    }

    fn seconds(&self, to: &mut DescriptorEncoder, functions: &[Arc<Function>]) -> Result<(), Error> {
        let help = "Seconds from a request's arrival to its response's end";
        let mut metric = to.encode_descriptor("gateway_functions_seconds", help, None, MetricType::Histogram)?;
        each_code(functions, |name, code, times| {
            let labels = [("function_name", name), ("code", code)];
            let mut metric = metric.encode_family(&labels)?;
            let sum = times.sum_seconds();
            metric.encode_histogram::<[(&str, &str); 0]>(sum, times.count(), &buckets(times), None)
        })
    }

    fn invocations(&self, to: &mut DescriptorEncoder, functions: &[Called]) -> Result<(), Error> {
        let help = "Requests that ended";
        let mut metric = to.encode_descriptor("gateway_function_invocation", help, None, MetricType::Counter)?;
        for (function, near) in functions {
            for (code, count) in by_code(function, near) {
                let labels = [("function_name", &*function.name), ("code", &code.to_string())];
                metric.encode_family(&labels)?.encode_counter(&count, None as NoExemplar)?;
            }
        }
        Ok(())
    }

    fn gauges(&self, to: &mut DescriptorEncoder, functions: &[Called]) -> Result<(), Error> {
        type Value = fn(&Function, &NearCalls) -> u64;
        let gauges: [(&str, &str, Value); 4] = [
            // OpenFaaS's name has no `_total`, which OpenMetrics demands of a counter.
            ("gateway_function_invocation_started", "Requests that came", |f, near| {
                f.tally.started().saturating_add(near.ended).saturating_add(near.open)
            }),
            ("gateway_service_count", "Instances that are ready", |f, _| f.route().ready.len() as u64),
            ("nearpath_inflight", "Requests that came and have not ended", |f, near| {
                f.tally.started().saturating_sub(f.tally.ended()).saturating_add(near.open)
            }),
            ("nearpath_queued", "Requests that wait for an instance", |f, _| f.gate.load().1 as u64),
        ];
        for (name, help, value) in gauges {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (function, near) in functions {
                let labels = [("function_name", &*function.name)];
                metric.encode_family(&labels)?.encode_gauge(&value(function, near))?;
            }
        }
        Ok(())
    }

    fn refusals(&self, to: &mut DescriptorEncoder, functions: &[Arc<Function>]) -> Result<(), Error> {
        let help = "Requests that the platform refused, cut or lost; no function_name: none was known";
        let mut metric = to.encode_descriptor("nearpath_refused", help, None, MetricType::Counter)?;
        let of_functions = functions.iter().map(|function| (&*function.name, &function.tally.refused));
        for (name, refused) in of_functions.chain([("", &self.totals.refused)]) {
            for (reason, count) in refused.seen() {
                let labels = [("function_name", name), ("reason", reason.name())];
                metric.encode_family(&labels)?.encode_counter(&count, None as NoExemplar)?;
            }
        }
        Ok(())
    }

    fn connections(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let totals = &*self.totals;
        let counters = [
            ("nearpath_connections", "Connections accepted", &totals.connections),
            ("nearpath_accept_errors", "Connections that could not be accepted", &totals.accept_errors),
            (
                "nearpath_connections_cut",
                "Connections cut: peer too slow, too silent or too restless",
                &totals.connections_cut,
            ),
            ("nearpath_http3_connections", "Connections over HTTP/3", &totals.http3.connections),
            ("nearpath_http3_requests", "Requests over HTTP/3", &totals.http3.requests),
            ("nearpath_http3_early", "Requests over HTTP/3 that ran in the first flight", &totals.http3.early),
            ("nearpath_http3_retries", "Newcomers over HTTP/3 who had to prove their address", &totals.http3.retries),
            ("nearpath_http3_refused", "Newcomers over HTTP/3 turned away: no room", &totals.http3.refused),
            ("nearpath_access_log_lost", "Access log lines lost: writer too slow", &totals.log_lost),
        ];
        for (name, help, value) in counters {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter(&value.load(Ordering::Relaxed), None as NoExemplar)?;
        }
        Ok(())
    }
}

fn each_code(
    functions: &[Arc<Function>],
    mut show: impl FnMut(&str, &str, &Times) -> Result<(), Error>,
) -> Result<(), Error> {
    for function in functions {
        for (code, times) in function.tally.codes() {
            show(&function.name, &code.to_string(), times)?;
        }
    }
    Ok(())
}

/// Requests that ended, by status code, whichever way they came.
fn by_code(function: &Function, near: &NearCalls) -> BTreeMap<u16, u64> {
    let mut codes: BTreeMap<u16, u64> = function.tally.codes().map(|(code, times)| (code, times.count())).collect();
    let failed = near.failed.min(near.ended);
    for (code, count) in [(200, near.ended - failed), (500, failed)] {
        if count > 0 {
            let all = codes.entry(code).or_default();
            *all = all.saturating_add(count);
        }
    }
    codes
}

fn buckets(times: &Times) -> Vec<(f64, u64)> {
    let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    bounds.zip(times.buckets()).collect()
}
