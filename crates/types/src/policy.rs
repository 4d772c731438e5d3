//! Settings of a function that the platform obeys, read once from its labels, annotations and environment.
//!
//! OpenFaaS's own names are honoured where it has one; nearpath's additions are annotations under `nearpath.io/`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::function::FunctionSpec;
use crate::name::{FunctionId, Namespace};
use crate::{duration, quantity, topic};

/// Annotation: the chain that the function belongs to.
pub const CHAIN: &str = "nearpath.io/chain";
/// Annotation: functions that this one may call, comma separated: the chain's edges that start here.
pub const CALLS: &str = "nearpath.io/calls";
/// Annotation: how descriptors go between the functions of the chain: `ring`, `sockmap` or `poll`.
pub const DELIVERY: &str = "nearpath.io/delivery";
/// Annotation: who can write where in the chain's memory: `shared` or `strict`.
pub const ISOLATION: &str = "nearpath.io/isolation";
/// Annotation: destinations outside (`HOST:PORT`), comma separated, that this function may reach.
pub const EGRESS: &str = "nearpath.io/egress";
/// Annotation or environment variable: requests that one instance serves at a time; 0 means no limit.
pub const MAX_INFLIGHT: &str = "nearpath.io/max-inflight";
/// Annotation: requests that may wait when every instance is busy or none is ready.
pub const QUEUE: &str = "nearpath.io/queue";
/// Annotation: how long a request may wait for a free instance.
pub const QUEUE_TIMEOUT: &str = "nearpath.io/queue-timeout";
/// Annotation: how long a request may wait for the first instance of a sleeping function.
pub const COLD_TIMEOUT: &str = "nearpath.io/cold-timeout";
/// Annotation: from the request's end to the response's first byte.
pub const FIRST_BYTE_TIMEOUT: &str = "nearpath.io/first-byte-timeout";
/// Annotation: longest silence inside a response or an upgraded connection.
pub const IDLE_TIMEOUT: &str = "nearpath.io/idle-timeout";
/// Annotation: the whole request, from its first byte to the response's last one.
pub const TOTAL_TIMEOUT: &str = "nearpath.io/total-timeout";
/// Annotation: largest request body, as a memory quantity.
pub const MAX_BODY: &str = "nearpath.io/max-body";
/// Annotation: MQTT topics whose messages call the function, comma separated, with the wildcards `+` and `#`. The name is
/// the one that OpenFaaS's connectors read.
pub const TOPIC: &str = "topic";
/// Label: replicas to start with and to wake to.
pub const SCALE_MIN: &str = "com.openfaas.scale.min";
/// Label: most replicas.
pub const SCALE_MAX: &str = "com.openfaas.scale.max";

/// How descriptors go between functions of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// Rings in shared memory and one bell a party.
    #[default]
    Ring,
    /// The kernel carries them and knows who sends (SK_MSG).
    Sockmap,
    /// Rings that parties look at without end.
    Poll,
}

impl FromStr for Delivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ring" => Ok(Self::Ring),
            "sockmap" => Ok(Self::Sockmap),
            "poll" => Ok(Self::Poll),
            _ => Err(format!("{text:?} is none of ring, sockmap, poll")),
        }
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Sockmap => "sockmap",
            Self::Poll => "poll",
        })
    }
}

/// Who can write where in the memory of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// One pool, in which every function of the chain can write.
    #[default]
    Shared,
    /// A pool for each thread of each function, in which the others can only read.
    Strict,
}

impl FromStr for Isolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shared" => Ok(Self::Shared),
            "strict" => Ok(Self::Strict),
            _ => Err(format!("{text:?} is none of shared, strict")),
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Strict => "strict",
        })
    }
}

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
    /// Functions that it may call.
    pub calls: Vec<FunctionId>,
    /// MQTT topic filters whose messages call it.
    pub topics: Vec<String>,
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
            calls: Vec::new(),
            topics: Vec::new(),
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
            chain: note(CHAIN).text.cloned(),
            delivery: note(DELIVERY).read(str::parse)?.unwrap_or_default(),
            isolation: note(ISOLATION).read(str::parse)?.unwrap_or_default(),
            calls: note(CALLS).read(|text| functions(text, &spec.namespace))?.unwrap_or_default(),
            topics: note(TOPIC).read(topics)?.unwrap_or_default(),
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

fn functions(list: &str, home: &Namespace) -> Result<Vec<FunctionId>, crate::InvalidName> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| match name.contains('.') {
            true => name.parse(),
            false => Ok(FunctionId { name: name.parse()?, namespace: home.clone() }),
        })
        .collect()
}

fn topics(list: &str) -> Result<Vec<String>, topic::BadFilter> {
    let filters = list.split(',').map(str::trim).filter(|filter| !filter.is_empty());
    filters.map(|filter| topic::check_filter(filter).map(|()| filter.to_owned())).collect()
}

struct Setting<'a> {
    key: &'static str,
    text: Option<&'a String>,
}

impl Setting<'_> {
    fn read<T, E: ToString>(&self, parse: impl Fn(&str) -> Result<T, E>) -> Result<Option<T>, InvalidSetting> {
        let Some(text) = self.text else { return Ok(None) };
        parse(text).map(Some).map_err(|error| InvalidSetting { key: self.key, why: error.to_string() })
    }

    fn number<T: FromStr>(&self, default: T) -> Result<T, InvalidSetting> {
        let whole = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is not a whole number"));
        Ok(self.read(whole)?.unwrap_or(default))
    }

    fn duration(&self, default: Duration) -> Result<Duration, InvalidSetting> {
        Ok(self.read(duration::parse)?.unwrap_or(default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(annotations: &[(&str, &str)]) -> FunctionSpec {
        let mut spec = FunctionSpec::named("checkout".parse().unwrap());
        spec.annotations = annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        spec
    }

    #[test]
    fn edges_default_to_the_callers_namespace() {
        let policy = Policy::of(&spec(&[(CALLS, "cart, mail.other")])).unwrap();
        assert!(policy.may_call(&"cart".parse().unwrap()));
        assert!(policy.may_call(&"mail.other".parse().unwrap()));
        assert!(!policy.may_call(&"payment".parse().unwrap()));
    }

    #[test]
    fn functions_that_agree_on_delivery_and_isolation_share_a_domain() {
        let domain = |delivery: &[(&str, &str)]| {
            let spec = spec(&[&[(CHAIN, "shop")], delivery].concat());
            Policy::of(&spec).map(|policy| policy.domain(&spec.id()).unwrap())
        };
        assert_eq!(domain(&[]).unwrap(), domain(&[(DELIVERY, "ring")]).unwrap());
        assert_eq!(domain(&[]).unwrap(), "shop.openfaas-fn");
        assert_eq!(domain(&[(DELIVERY, "sockmap")]).unwrap(), "shop.openfaas-fn:sockmap");
        assert_eq!(domain(&[(ISOLATION, "shared")]).unwrap(), "shop.openfaas-fn");
        assert_eq!(domain(&[(ISOLATION, "strict")]).unwrap(), "shop.openfaas-fn:strict");
        assert_eq!(domain(&[(DELIVERY, "poll"), (ISOLATION, "strict")]).unwrap(), "shop.openfaas-fn:poll:strict");
        let error = domain(&[(ISOLATION, "loose")]).unwrap_err();
        assert_eq!(error.to_string(), "nearpath.io/isolation: \"loose\" is none of shared, strict");
        let error = domain(&[(DELIVERY, "pigeon")]).unwrap_err();
        assert_eq!(error.to_string(), "nearpath.io/delivery: \"pigeon\" is none of ring, sockmap, poll");
    }

    #[test]
    fn topics_are_filters() {
        let policy = Policy::of(&spec(&[(TOPIC, "vm/+/on, payments")])).unwrap();
        assert_eq!(policy.topics, ["vm/+/on", "payments"]);
        assert_eq!(Policy::of(&spec(&[(TOPIC, "a/#/b")])).unwrap_err().key, TOPIC);
    }

    #[test]
    fn a_typing_error_names_its_key() {
        let error = Policy::of(&spec(&[(QUEUE_TIMEOUT, "soon")])).unwrap_err();
        assert_eq!(error.key, QUEUE_TIMEOUT);
    }

    #[test]
    fn the_least_replicas_are_not_more_than_the_most() {
        let mut spec = spec(&[]);
        spec.labels.insert(SCALE_MIN.into(), "21".into());
        let error = Policy::of(&spec).unwrap_err();
        assert_eq!(error.to_string(), "com.openfaas.scale.min: 21 is more than com.openfaas.scale.max, 20");
        spec.labels.insert(SCALE_MAX.into(), "21".into());
        assert_eq!(Policy::of(&spec).map(|policy| (policy.scale_min, policy.scale_max)), Ok((21, 21)));
    }

    #[test]
    fn openfaas_max_inflight_is_honoured() {
        let mut spec = spec(&[]);
        spec.env_vars.insert("max_inflight".into(), "4".into());
        assert_eq!(Policy::of(&spec).unwrap().max_inflight, Some(4));
    }
}
