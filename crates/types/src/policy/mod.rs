//! Settings of a function that the platform obeys, read once from its labels, annotations and environment.
//!
//! OpenFaaS's own names are honoured where it has one; nearpath's additions are annotations under `nearpath.io/`.

mod keys;
mod setting;
#[cfg(test)]
mod tests;
mod told;
mod transport;
mod ways;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::function::FunctionSpec;
use crate::name::FunctionId;
use crate::{Egress, egress, quantity, topic};

pub use keys::*;
pub use transport::{Transport, ZeroRtt};
pub use ways::{Delivery, Isolation, Pages, Placement};

use setting::Setting;
use told::{calls, told_topics};

/// What the platform does for one function. Defaults are in [`Policy::default`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Requests that one instance serves at a time; `None`: no limit.
    pub max_inflight: Option<u32>,
    /// Requests that may wait, over all instances.
    pub queue: u32,
    /// Longest wait for a free instance.
    pub queue_timeout: Duration,
    /// Longest wait for a sleeping function's first instance.
    pub cold_timeout: Duration,
    /// See [`FIRST_BYTE_TIMEOUT`].
    pub first_byte_timeout: Duration,
    /// See [`IDLE_TIMEOUT`].
    pub idle_timeout: Duration,
    /// See [`TOTAL_TIMEOUT`]; upgraded connections and event streams are bound by `idle_timeout` alone.
    pub total_timeout: Duration,
    /// Largest request body in bytes; `None`: no limit, bodies are streamed.
    pub max_body: Option<u64>,
    /// Replicas to start with and to wake to, at least 1.
    pub scale_min: u32,
    /// Most replicas.
    pub scale_max: u32,
    /// The chain it belongs to.
    pub chain: Option<String>,
    /// See [`DELIVERY`].
    pub delivery: Delivery,
    /// See [`ISOLATION`].
    pub isolation: Isolation,
    /// Pages of the chain's memory, as far as this function is concerned.
    pub pages: Pages,
    /// Processors of the chain, as far as this function is concerned.
    #[serde(default)]
    pub placement: Placement,
    /// What carries calls to it that do not go through memory.
    #[serde(default)]
    pub transport: Transport,
    /// Which of them may go in a first flight.
    #[serde(default)]
    pub zero_rtt: ZeroRtt,
    /// Functions that it may call.
    pub calls: Vec<FunctionId>,
    /// Other names by which it calls some of them, each with what it stands for.
    #[serde(default)]
    pub aliases: Vec<(FunctionId, FunctionId)>,
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
    pub egress: Vec<Egress>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_inflight: None,
            queue: 1_000,
            queue_timeout: Duration::from_secs(10),
            cold_timeout: Duration::from_secs(30),
            first_byte_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            total_timeout: Duration::from_secs(60),
            max_body: None,
            scale_min: 1,
            scale_max: 20,
            chain: None,
            delivery: Delivery::Ring,
            isolation: Isolation::Shared,
            pages: Pages::Small,
            placement: Placement::Auto,
            transport: Transport::Auto,
            zero_rtt: ZeroRtt::Always,
            calls: Vec::new(),
            aliases: Vec::new(),
            publishes: Vec::new(),
            subscribes: Vec::new(),
            topics: Vec::new(),
            egress: Vec::new(),
        }
    }
}

/// A label, annotation or variable whose value is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct InvalidSetting {
    /// The key as the tenant wrote it.
    pub key: &'static str,
    /// What is wrong with its value.
    pub why: String,
}

impl Policy {
    /// Reads a function's settings. Fails on the first one that is not understood, so that a typing error is told at
    /// deploy time and not by a surprise under load.
    pub fn of(spec: &FunctionSpec) -> Result<Self, InvalidSetting> {
        let default = Self::default();
        let note = |key| Setting { key, text: spec.annotations.get(key) };
        let label = |key| Setting { key, text: spec.labels.get(key) };
        let inflight = match spec.annotations.get(MAX_INFLIGHT) {
            Some(_) => note(MAX_INFLIGHT).number(0)?,
            None => Setting { key: "max_inflight", text: spec.env_vars.get("max_inflight") }.number(0)?,
        };
        let (calls, aliases) = note(CALLS).read(|text| calls(text, &spec.namespace))?.unwrap_or_default();
        let (scale_min, scale_max) = scale(label(SCALE_MIN), label(SCALE_MAX), &default)?;
        Ok(Self {
            max_inflight: (inflight > 0).then_some(inflight),
            queue: note(QUEUE).number(default.queue)?,
            queue_timeout: note(QUEUE_TIMEOUT).duration(default.queue_timeout)?,
            cold_timeout: note(COLD_TIMEOUT).duration(default.cold_timeout)?,
            first_byte_timeout: note(FIRST_BYTE_TIMEOUT).duration(default.first_byte_timeout)?,
            idle_timeout: note(IDLE_TIMEOUT).duration(default.idle_timeout)?,
            total_timeout: note(TOTAL_TIMEOUT).duration(default.total_timeout)?,
            max_body: note(MAX_BODY).read(|text| quantity::memory(text).map(Some))?.flatten(),
            scale_min,
            scale_max,
            delivery: note(DELIVERY).read(str::parse)?.unwrap_or_default(),
            isolation: note(ISOLATION).read(str::parse)?.unwrap_or_default(),
            calls,
            aliases,
            publishes: note(PUBLISHES).read(told_topics)?.unwrap_or_default(),
            subscribes: note(SUBSCRIBES).read(told_topics)?.unwrap_or_default(),
            chain: note(CHAIN).read(chain)?,
            pages: note(PAGES).read(str::parse)?.unwrap_or_default(),
            placement: note(PLACEMENT).read(str::parse)?.unwrap_or_default(),
            transport: note(TRANSPORT).read(str::parse)?.unwrap_or_default(),
            zero_rtt: note(ZERO_RTT).read(str::parse)?.unwrap_or_default(),
            topics: note(TOPIC).read(topics)?.unwrap_or_default(),
            egress: note(EGRESS).read(egress::list)?.unwrap_or_default(),
        })
    }

    /// The security domain of the function that has these settings: its chain, in its namespace, and how descriptors go there
    /// unless by rings, and that it is strict, if it is. Functions of no chain share nothing, nor do those of a chain that do
    /// not agree on the last two.
    pub fn domain(&self, function: &FunctionId) -> Option<String> {
        let chain = self.chain.as_ref()?;
        let mut domain = format!("{chain}.{}", function.namespace);
        if self.delivery != Delivery::Ring {
            domain.push_str(&format!(":{}", self.delivery));
        }
        if self.isolation != Isolation::Shared {
            domain.push_str(&format!(":{}", self.isolation));
        }
        Some(domain)
    }

    /// Whether an edge to `callee` is declared.
    pub fn may_call(&self, callee: &FunctionId) -> bool {
        self.calls.contains(callee)
    }

    /// What this function means by a name that is an alias of its own.
    pub fn alias(&self, name: &FunctionId) -> Option<&FunctionId> {
        self.aliases.iter().find(|(alias, _)| alias == name).map(|(_, callee)| callee)
    }
}

/// The least and the most replicas, both at least 1.
fn scale(min: Setting<'_>, max: Setting<'_>, default: &Policy) -> Result<(u32, u32), InvalidSetting> {
    let (key, named) = (min.key, max.key);
    let (min, max) = (min.number(default.scale_min)?.max(1), max.number(default.scale_max)?.max(1));
    match min > max {
        true => Err(InvalidSetting { key, why: format!("{min} is more than {named}, {max}") }),
        false => Ok((min, max)),
    }
}

/// A chain is named like a function: its name goes into domains, metrics and paths.
fn chain(text: &str) -> Result<String, crate::InvalidName> {
    text.trim().parse::<crate::FunctionName>().map(String::from)
}

fn topics(list: &str) -> Result<Vec<String>, topic::BadFilter> {
    let filters = list.split(',').map(str::trim).filter(|filter| !filter.is_empty());
    filters.map(|filter| topic::check_filter(filter).map(|()| filter.to_owned())).collect()
}
