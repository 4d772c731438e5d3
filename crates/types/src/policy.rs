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
/// Annotation: functions that this one may call, comma separated: the chain's edges that start here. `ALIAS=FUNCTION` lets it
/// call the function by another name.
pub const CALLS: &str = "nearpath.io/calls";
/// Annotation: how descriptors go between the functions of the chain: `ring`, `sockmap` or `poll`.
pub const DELIVERY: &str = "nearpath.io/delivery";
/// Annotation: who can write where in the chain's memory: `shared` or `strict`.
pub const ISOLATION: &str = "nearpath.io/isolation";
/// Annotation: on which processors the functions of the chain run, see [`Placement`].
pub const PLACEMENT: &str = "nearpath.io/placement";
/// Annotation: pages of the chain's shared memory, see [`Pages`]. Every function of the chain has to ask for huge ones.
pub const PAGES: &str = "nearpath.io/pages";
/// Annotation: topics (or filters of topics) whose events this function sends within its chain, comma separated.
pub const PUBLISHES: &str = "nearpath.io/publishes";
/// Annotation: filters of the topics whose events this function wants from others of its chain, comma separated.
pub const SUBSCRIBES: &str = "nearpath.io/subscribes";
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

/// Most bytes of a function's aliases, and of its topics: the node tells peers of them in one packet.
const MOST_TOLD: usize = 1024;

/// What the pages of a chain's shared memory are. Huge ones are for functions that trust each other not to end each other:
/// one that punches a hole where the machine has no huge page left lets the next access end in SIGBUS
/// (`contract/memory.md`). So they are never a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// Of the usual size.
    #[default]
    Small,
    /// Huge where enough are reserved, else small, without a word.
    Auto,
    /// Huge; where too few are reserved small ones, and that is told.
    Huge,
}

impl FromStr for Pages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "small" => Ok(Self::Small),
            "auto" => Ok(Self::Auto),
            "huge" => Ok(Self::Huge),
            other => Err(format!("{other:?} is not small, huge or auto")),
        }
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

/// On which processors the functions of a chain run. A wake-up on the same processor costs a fifth of one across processors,
/// and what runs there finds its data in the cache; but a chain on one processor has no more than that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Wherever the kernel puts them.
    Spread,
    /// On one processor while measurement says that it is enough for them, else as with `spread`.
    #[default]
    Auto,
    /// On one processor.
    Core,
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "core" => Ok(Self::Core),
            "spread" => Ok(Self::Spread),
            other => Err(format!("{other:?} is not auto, core or spread")),
        }
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
    /// Pages of the chain's memory, as far as this function is concerned.
    pub pages: Pages,
    /// Processors of the chain, as far as this function is concerned.
    #[serde(default)]
    pub placement: Placement,
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
            calls: Vec::new(),
            aliases: Vec::new(),
            publishes: Vec::new(),
            subscribes: Vec::new(),
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

/// The callees, and the aliases among them.
type Calls = (Vec<FunctionId>, Vec<(FunctionId, FunctionId)>);

fn calls(list: &str, home: &Namespace) -> Result<Calls, String> {
    let (mut callees, mut aliases) = (Vec::new(), Vec::new());
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (alias, name) =
            item.split_once('=').map_or((None, item), |(alias, name)| (Some(alias.trim()), name.trim()));
        let callee = function(name, home).map_err(|error| error.to_string())?;
        if let Some(alias) = alias {
            let name = alias.parse().map_err(|error: crate::InvalidName| error.to_string())?;
            aliases.push((FunctionId { name, namespace: home.clone() }, callee.clone()));
        }
        if !callees.contains(&callee) {
            callees.push(callee);
        }
    }
    check_aliases(&callees, &aliases)?;
    Ok((callees, aliases))
}

fn function(name: &str, home: &Namespace) -> Result<FunctionId, crate::InvalidName> {
    match name.contains('.') {
        true => name.parse(),
        false => Ok(FunctionId { name: name.parse()?, namespace: home.clone() }),
    }
}

/// A name means one function.
fn check_aliases(callees: &[FunctionId], aliases: &[(FunctionId, FunctionId)]) -> Result<(), String> {
    for (at, (alias, callee)) in aliases.iter().enumerate() {
        if callees.contains(alias) && alias != callee {
            return Err(format!("`{}={}`: {} is called by its own name too", alias.name, callee.name, alias.name));
        }
        if aliases[..at].iter().any(|(other, meant)| other == alias && meant != callee) {
            return Err(format!("`{}` stands for two functions", alias.name));
        }
    }
    let told: usize = aliases.iter().map(|(alias, _)| alias.to_string().len() + 3).sum();
    if told > MOST_TOLD { Err(format!("the aliases have {told} bytes, {MOST_TOLD} are allowed")) } else { Ok(()) }
}

fn told_topics(list: &str) -> Result<Vec<String>, String> {
    match list.len() > MOST_TOLD {
        true => Err(format!("the topics have {} bytes, {MOST_TOLD} are allowed", list.len())),
        false => topics(list).map_err(|error| error.to_string()),
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
    fn an_alias_is_another_name_for_a_callee() {
        let policy = Policy::of(&spec(&[(CALLS, "rates=currency, cart, fx = currency.other")])).unwrap();
        let id = |name: &str| name.parse::<FunctionId>().unwrap();
        assert_eq!(policy.calls, [id("currency"), id("cart"), id("currency.other")]);
        assert_eq!(policy.alias(&id("rates")), Some(&id("currency")));
        assert_eq!(policy.alias(&id("fx")), Some(&id("currency.other")));
        assert_eq!(policy.alias(&id("cart")), None);
        for (wrong, why) in
            [("a=b, a=c", "`a` stands for two functions"), ("a=b, a", "`a=b`: a is called by its own name too")]
        {
            assert_eq!(Policy::of(&spec(&[(CALLS, wrong)])).unwrap_err().why, why);
        }
        for wrong in ["A=b", "a=B", "=b", "a=", "a.dev=b"] {
            assert_eq!(
                Policy::of(&spec(&[(CALLS, wrong)])).map(drop).map_err(|error| error.key),
                Err(CALLS),
                "{wrong}"
            );
        }
    }

    #[test]
    fn topics_within_a_chain_are_filters_and_few() {
        let policy = Policy::of(&spec(&[(PUBLISHES, "order/placed"), (SUBSCRIBES, "order/+, stock/#")])).unwrap();
        assert_eq!((policy.publishes.len(), policy.subscribes.len()), (1, 2));
        assert_eq!(Policy::of(&spec(&[(SUBSCRIBES, "a#")])).unwrap_err().key, SUBSCRIBES);
        let many = vec!["a/b/c"; 300].join(",");
        assert_eq!(Policy::of(&spec(&[(PUBLISHES, &many)])).unwrap_err().key, PUBLISHES);
    }

    #[test]
    fn topics_are_filters() {
        let policy = Policy::of(&spec(&[(TOPIC, "vm/+/on, payments")])).unwrap();
        assert_eq!(policy.topics, ["vm/+/on", "payments"]);
        assert_eq!(Policy::of(&spec(&[(TOPIC, "a/#/b")])).unwrap_err().key, TOPIC);
    }

    #[test]
    fn pages_and_chains_are_words() {
        let pages = |text| Policy::of(&spec(&[(PAGES, text)])).map(|policy| policy.pages);
        assert_eq!(
            (pages("huge"), pages("auto"), pages("small")),
            (Ok(Pages::Huge), Ok(Pages::Auto), Ok(Pages::Small))
        );
        assert_eq!(pages("large").unwrap_err().to_string(), "nearpath.io/pages: \"large\" is not small, huge or auto");
        assert_eq!(Policy::of(&spec(&[(CHAIN, "a.b")])).unwrap_err().key, CHAIN);
        let placement = |text| Policy::of(&spec(&[(PLACEMENT, text)])).map(|policy| policy.placement);
        assert_eq!(
            (placement("core"), placement("spread"), placement("auto")),
            (Ok(Placement::Core), Ok(Placement::Spread), Ok(Placement::Auto))
        );
        assert_eq!(Policy::default().placement, Placement::Auto);
        assert_eq!(placement("1").unwrap_err().to_string(), "nearpath.io/placement: \"1\" is not auto, core or spread");
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
