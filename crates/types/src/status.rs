//! Observed state: responses of the REST API, and reports of a node to the controller.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::autoscaling_status::AutoscalingStatus;
use crate::desired::Revision;
use crate::function::FunctionSpec;
use crate::function_map::FunctionMap;
pub use crate::instance_status::{InstanceStatus, UsageStatus};
use crate::missing_nodes::MissingNode;
use crate::name::{FunctionId, InstanceId};
use crate::node_status::NodeFunction;
use crate::snapshot::InstanceState;

/// OpenFaaS's `FunctionStatus`: the spec as deployed, and the observed state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionStatus {
    /// The function's name (OpenFaaS calls it `service` when deploying and `name` here).
    pub name: String,
    /// The rest of the spec; `service` is left out on the wire.
    #[serde(flatten)]
    pub spec: SpecFields,
    /// Calls answered since nearpath started: those at the gateway, and those of other functions
    /// through shared memory. Each call counts once, at the node that the caller has called.
    pub invocation_count: f64,
    /// Replicas wanted, on all nodes.
    pub replicas: u64,
    /// Replicas ready.
    pub available_replicas: u64,
    /// RFC 3339, UTC.
    pub created_at: String,
    /// The revision wanted: an update has arrived when the instances run it (nearpath's addition;
    /// 0: unknown).
    #[serde(default)]
    pub revision: u64,
    /// Virtual IPv4 address on the node that replies (nearpath's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_address: Option<Ipv4Addr>,
    /// State of its autoscaler; absent without one (nearpath's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingStatus>,
    /// CPU and memory, when asked for with `usage=1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,
    /// Reason why fewer instances are ready than wanted (nearpath's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready_reason: Option<String>,
    /// Last failure of an instance of this revision, also after others became ready (nearpath's
    /// addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Entry per instance (nearpath's addition).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceStatus>,
    /// Entry per node that answered, where there are several (nearpath's addition).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeFunction>,
    /// Nodes that did not answer (nearpath's addition).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_nodes: Vec<MissingNode>,
}

/// The fields of a spec that a status repeats.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the names and meanings are those of `FunctionSpec`
pub struct SpecFields {
    pub image: String,
    pub namespace: String,
    #[serde(default)]
    pub env_process: String,
    // Absent rather than empty, as OpenFaaS's providers answer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
    #[serde(default)]
    pub constraints: Vec<String>,
    #[serde(default)]
    pub secrets: Vec<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<crate::InstanceResources>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<crate::InstanceResources>,
    #[serde(default)]
    pub read_only_root_filesystem: bool,
}

impl From<&FunctionSpec> for SpecFields {
    fn from(spec: &FunctionSpec) -> Self {
        let spec = spec.clone();
        Self {
            image: spec.image,
            namespace: spec.namespace.into(),
            env_process: spec.env_process,
            env_vars: spec.env_vars,
            constraints: spec.constraints,
            secrets: spec.secrets,
            labels: spec.labels,
            annotations: spec.annotations,
            limits: spec.limits,
            requests: spec.requests,
            read_only_root_filesystem: spec.read_only_root_filesystem,
        }
    }
}

/// Phase of an instance's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartPhase {
    /// `spawn`, `network`, `root`, `lockdown`, `watchdog`, `handler`, …
    pub name: String,
    /// Duration.
    pub took: Duration,
}

/// Observations of one instance.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // the names and meanings are those of `InstanceStatus`
pub struct ObservedInstance {
    pub id: InstanceId,
    pub state: InstanceState,
    pub addr: crate::InstanceAddr,
    pub revision: Revision,
    pub pid: u32,
    pub start: Vec<StartPhase>,
    pub ready_after: Option<Duration>,
}

/// Observations of one function.
#[derive(Debug, Clone)]
pub struct ObservedFunction {
    /// Full name.
    pub id: FunctionId,
    /// Its instances, whatever their state and revision.
    pub instances: Vec<ObservedInstance>,
    /// Last reason why an instance failed to start or died, until one becomes ready.
    pub start_failure: Option<String>,
    /// The same for the whole life of the revision, with the instance.
    pub last_failure: Option<String>,
}

impl FromIterator<ObservedFunction> for FunctionMap<ObservedFunction> {
    fn from_iter<I: IntoIterator<Item = ObservedFunction>>(all: I) -> Self {
        all.into_iter().map(|one| (one.id.clone(), one)).collect()
    }
}

impl ObservedFunction {
    /// Instances that may be called.
    pub fn available_count(&self) -> u64 {
        self.instances
            .iter()
            .filter(|i| i.state == InstanceState::Ready)
            .count() as u64
    }
}

/// Line of an instance's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The function's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The instance's id.
    pub instance: String,
    /// Time at which the node read it; RFC 3339 on the wire.
    #[serde(with = "rfc3339")]
    pub timestamp: SystemTime,
    /// The line without its end.
    pub text: String,
}

/// Selection of log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogQuery {
    /// Function.
    pub function: FunctionId,
    /// Instance; `None`: all.
    pub instance: Option<String>,
    /// Number of last lines; `None`: all that are kept.
    pub tail: Option<usize>,
    /// Oldest time; `None`: any.
    pub since: Option<SystemTime>,
    /// Goes on with new lines.
    pub follow: bool,
}

/// RFC 3339 in UTC, to the nanosecond, for the API's time stamps.
pub mod rfc3339 {
    use std::time::SystemTime;

    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    /// For `#[serde(with)]`.
    pub fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format_time(*time))
    }

    /// For `#[serde(with)]`.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(from)?;
        parse_time(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not an RFC 3339 time")))
    }

    /// Writes a time, as `2026-01-31T08:09:10.123456789Z`.
    pub fn format_time(time: SystemTime) -> String {
        // Years after 9999 have no RFC 3339 form, so the last one stands for them.
        Timestamp::try_from(time)
            .unwrap_or(Timestamp::MAX)
            .to_string()
    }

    /// Reads a time with `Z` or a numeric offset.
    pub fn parse_time(text: &str) -> Option<SystemTime> {
        text.parse::<Timestamp>().ok().map(SystemTime::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_on_the_wire() {
        let time = SystemTime::UNIX_EPOCH + Duration::new(951_782_400, 5);
        assert_eq!(rfc3339::format_time(time), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(
            rfc3339::parse_time("2000-02-29T01:00:00.000000005+01:00"),
            Some(time)
        );
        for bad in [
            "",
            "2000-02-29",
            "2000-13-01T00:00:00Z",
            "2000-01-01T25:00:00Z",
            "2000-01-01T00:00:00",
            "x",
        ] {
            assert_eq!(rfc3339::parse_time(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_time_survives(seconds in 0u64..4_000_000_000, nanos in 0u32..1_000_000_000) {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
            prop_assert_eq!(rfc3339::parse_time(&rfc3339::format_time(time)), Some(time));
        }
        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            let _ = rfc3339::parse_time(&text);
        }
    }
}
