//! Settings of a function for the platform, read once from its labels, annotations and environment.
//!
//! OpenFaaS's own names are honoured where it has one; nearpath's additions are annotations under
//! `nearpath.io/`.

mod calls_and_topics;
mod chain_settings;
mod edge_balance;
mod ignored;
mod keys;
mod loopback;
mod scaling;
mod setting;
#[cfg(test)]
mod tests;
mod transport;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::function::FunctionSpec;
use crate::name::FunctionId;
use crate::node::{InvalidNodeName, NodeName};
use crate::{EgressSpec, egress, quantity, topic};

pub use calls_and_topics::{parse_edge_settings, split_edge_settings};
pub use chain_settings::{ChainDelivery, ChainIsolation, ChainPages, ChainPlacement};
pub use edge_balance::EdgeBalance;
pub use ignored::{IgnoredSetting, WARNING_HEADER};
pub use keys::*;
pub use loopback::LoopbackDelivery;
pub use scaling::{MAX_DOWN_WINDOW, ScaleMetric, ScaleSettings};
pub use transport::{CallTransport, ZeroRttPolicy};

use calls_and_topics::{parse_calls, parse_chain_topics};
use setting::SettingText;

/// Settings of one function. Defaults are in [`FunctionPolicy::default`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionPolicy {
    /// Requests that one instance serves at a time; `None`: no limit.
    pub max_inflight: Option<u32>,
    /// Requests that may wait, over all instances.
    pub queue: u32,
    /// Longest wait for a free instance.
    pub queue_timeout: Duration,
    /// Longest wait for a sleeping function's first instance.
    pub cold_timeout: Duration,
    /// Time for which a sleeping function's instances are kept frozen; zero: they end at once.
    #[serde(default)]
    pub frozen: Duration,
    /// See [`FIRST_BYTE_TIMEOUT`].
    pub first_byte_timeout: Duration,
    /// See [`IDLE_TIMEOUT`].
    pub idle_timeout: Duration,
    /// See [`TOTAL_TIMEOUT`]; upgraded connections and event streams are bound by `idle_timeout`
    /// alone.
    pub total_timeout: Duration,
    /// Largest request body in bytes; `None`: no limit, bodies are streamed.
    pub max_body: Option<u64>,
    /// Replicas to start with and to wake to, at least 1.
    pub scale_min: u32,
    /// Maximum number of replicas.
    pub scale_max: u32,
    /// Chain of the function.
    pub chain: Option<String>,
    /// See [`DELIVERY`].
    pub delivery: ChainDelivery,
    /// See [`ISOLATION`].
    pub isolation: ChainIsolation,
    /// Pages of the chain's memory, as far as this function is concerned.
    pub pages: ChainPages,
    /// Processors of the chain, as far as this function is concerned.
    #[serde(default)]
    pub placement: ChainPlacement,
    /// Transport of calls that do not go through shared memory.
    #[serde(default)]
    pub transport: CallTransport,
    /// Delivery of bytes between the gateway and the function's own server.
    #[serde(default)]
    pub loopback_delivery: LoopbackDelivery,
    /// Calls that may go in a first flight.
    #[serde(default)]
    pub zero_rtt: ZeroRttPolicy,
    /// Nodes on which it runs; none: on every node.
    #[serde(default)]
    pub nodes: Vec<NodeName>,
    /// Functions that it may call.
    pub calls: Vec<FunctionId>,
    /// Aliases of callees, each with the function that it stands for.
    #[serde(default)]
    pub aliases: Vec<(FunctionId, FunctionId)>,
    /// Callees to which HTTP by name is balanced per connection ([`EdgeBalance::Connection`]).
    #[serde(default)]
    pub connection_balanced: Vec<FunctionId>,
    /// Filters of the topics that it publishes within its chain.
    #[serde(default)]
    pub publishes: Vec<String>,
    /// Filters of the topics that it wants from others of its chain.
    #[serde(default)]
    pub subscribes: Vec<String>,
    /// MQTT topic filters whose messages call it.
    pub topics: Vec<String>,
    /// Destinations outside that it may reach.
    #[serde(default)]
    pub egress: Vec<EgressSpec>,
}

impl Default for FunctionPolicy {
    fn default() -> Self {
        let scale = ScaleSettings::default();
        Self {
            max_inflight: None,
            queue: 1_000,
            queue_timeout: Duration::from_secs(10),
            cold_timeout: Duration::from_secs(30),
            frozen: Duration::ZERO,
            first_byte_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            total_timeout: Duration::from_secs(60),
            max_body: None,
            scale_min: scale.min_replicas,
            scale_max: scale.max_replicas,
            chain: None,
            delivery: ChainDelivery::Ring,
            isolation: ChainIsolation::Shared,
            pages: ChainPages::Small,
            placement: ChainPlacement::Auto,
            transport: CallTransport::Auto,
            loopback_delivery: LoopbackDelivery::Tcp,
            zero_rtt: ZeroRttPolicy::Always,
            nodes: Vec::new(),
            calls: Vec::new(),
            aliases: Vec::new(),
            connection_balanced: Vec::new(),
            publishes: Vec::new(),
            subscribes: Vec::new(),
            topics: Vec::new(),
            egress: Vec::new(),
        }
    }
}

/// Invalid label, annotation or variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct InvalidSetting {
    /// The key as the tenant wrote it.
    pub key: &'static str,
    /// Fault of its value.
    pub why: String,
}

impl FunctionPolicy {
    /// Reads a function's settings. Fails on the first invalid one, so that a typing error is
    /// reported at deploy time, not under load.
    pub fn from_spec(spec: &FunctionSpec) -> Result<Self, InvalidSetting> {
        let default = Self::default();
        let annotation = |key| SettingText {
            key,
            text: spec.annotations.get(key),
        };
        // The annotation wins over of-watchdog's variable.
        let inflight = match spec.annotations.get(MAX_INFLIGHT) {
            Some(_) => annotation(MAX_INFLIGHT).read_number(0)?,
            None => SettingText {
                key: "max_inflight",
                text: spec.env_vars.get("max_inflight"),
            }
            .read_number(0)?,
        };
        let calls = annotation(CALLS)
            .read_with(|text| parse_calls(text, &spec.namespace))?
            .unwrap_or_default();
        // The autoscaler reads the rest of it from the labels; here it is only checked.
        let scale = ScaleSettings::from_labels(&spec.labels)?;
        Ok(Self {
            // 0 means no limit, as in of-watchdog.
            max_inflight: (inflight > 0).then_some(inflight),
            queue: annotation(QUEUE).read_number(default.queue)?,
            queue_timeout: annotation(QUEUE_TIMEOUT).read_duration(default.queue_timeout)?,
            cold_timeout: annotation(COLD_TIMEOUT).read_duration(default.cold_timeout)?,
            frozen: annotation(FROZEN).read_duration(default.frozen)?,
            first_byte_timeout: annotation(FIRST_BYTE_TIMEOUT)
                .read_duration(default.first_byte_timeout)?,
            idle_timeout: annotation(IDLE_TIMEOUT).read_duration(default.idle_timeout)?,
            total_timeout: annotation(TOTAL_TIMEOUT).read_duration(default.total_timeout)?,
            max_body: annotation(MAX_BODY)
                .read_with(|text| quantity::parse_memory(text).map(Some))?
                .flatten(),
            scale_min: scale.min_replicas,
            scale_max: scale.max_replicas,
            delivery: annotation(DELIVERY).read_or_default()?,
            isolation: annotation(ISOLATION).read_or_default()?,
            calls: calls.callees,
            aliases: calls.aliases,
            connection_balanced: calls.connection_balanced,
            publishes: annotation(PUBLISHES)
                .read_with(parse_chain_topics)?
                .unwrap_or_default(),
            subscribes: annotation(SUBSCRIBES)
                .read_with(parse_chain_topics)?
                .unwrap_or_default(),
            chain: annotation(CHAIN).read_with(parse_chain)?,
            pages: annotation(PAGES).read_or_default()?,
            placement: annotation(PLACEMENT).read_or_default()?,
            transport: annotation(TRANSPORT).read_or_default()?,
            loopback_delivery: annotation(LOOPBACK).read_or_default()?,
            zero_rtt: annotation(ZERO_RTT).read_or_default()?,
            nodes: annotation(NODES)
                .read_with(parse_nodes)?
                .unwrap_or_default(),
            topics: annotation(TOPIC)
                .read_with(parse_topics)?
                .unwrap_or_default(),
            egress: annotation(EGRESS)
                .read_with(egress::parse_list)?
                .unwrap_or_default(),
        })
    }

    /// Returns the function's security domain: its chain and namespace, with delivery and isolation
    /// unless they are the defaults. Functions without a chain share nothing, nor do those of a
    /// chain that differ in these two.
    pub fn domain(&self, function: &FunctionId) -> Option<String> {
        let chain = self.chain.as_ref()?;
        // A text, because equality decides who shares memory: every setting that separates is in
        // it.
        let mut domain = format!("{chain}.{}", function.namespace);
        // The defaults are left out, so that writing one explicitly does not separate functions.
        if self.delivery != ChainDelivery::Ring {
            domain.push_str(&format!(":{}", self.delivery));
        }
        if self.isolation != ChainIsolation::Shared {
            domain.push_str(&format!(":{}", self.isolation));
        }
        Some(domain)
    }

    /// Returns whether instances may run on `node`.
    pub fn runs_on(&self, node: &NodeName) -> bool {
        self.nodes.is_empty() || self.nodes.contains(node)
    }

    /// Returns whether an edge to `callee` is declared.
    pub fn may_call(&self, callee: &FunctionId) -> bool {
        self.calls.contains(callee)
    }

    /// Returns the callee that an alias of this function stands for.
    pub fn resolve_alias(&self, name: &FunctionId) -> Option<&FunctionId> {
        self.aliases
            .iter()
            .find(|(alias, _)| alias == name)
            .map(|(_, callee)| callee)
    }
}

/// Parses a chain's name, which has the form of a function's: it goes into domains, metrics and
/// paths.
fn parse_chain(text: &str) -> Result<String, crate::InvalidName> {
    text.trim().parse::<crate::FunctionName>().map(String::from)
}

fn parse_nodes(list: &str) -> Result<Vec<NodeName>, InvalidNodeName> {
    let names = list.split(',').map(str::trim);
    let mut nodes: Vec<NodeName> = names
        .filter(|name| !name.is_empty())
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // The order says nothing, and two equal lists make two equal policies.
    nodes.sort();
    nodes.dedup();
    Ok(nodes)
}

fn parse_topics(list: &str) -> Result<Vec<String>, topic::InvalidTopicFilter> {
    // Separated by commas, as OpenFaaS's connectors write them.
    let filters = list
        .split(',')
        .map(str::trim)
        .filter(|filter| !filter.is_empty());
    filters
        .map(|filter| topic::check_filter(filter).map(|()| filter.to_owned()))
        .collect()
}
