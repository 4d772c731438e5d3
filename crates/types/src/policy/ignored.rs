//! Labels and annotations that have no effect although their names promise one: misspelt, in the
//! wrong map, or not supported.

use std::collections::BTreeMap;
use std::fmt;

use super::{ScaleMetric, keys};
use crate::function::FunctionSpec;
use crate::similar::find_similar;

/// Response header of a deployment, once per setting without effect.
pub const WARNING_HEADER: &str = "x-nearpath-warning";
/// Prefixes of keys that the platform is expected to obey.
const OWN_PREFIX: &str = "nearpath.io/";
const OPENFAAS_PREFIX: &str = "com.openfaas.";
/// Every annotation below [`OWN_PREFIX`] that has an effect.
const ANNOTATIONS: &[&str] = &[
    keys::CALLS,
    keys::CHAIN,
    keys::COLD_TIMEOUT,
    keys::FROZEN,
    keys::DELIVERY,
    keys::EGRESS,
    keys::FIRST_BYTE_TIMEOUT,
    keys::IDLE_TIMEOUT,
    keys::ISOLATION,
    keys::LOOPBACK,
    keys::MAX_BODY,
    keys::MAX_INFLIGHT,
    keys::NODES,
    keys::PAGES,
    keys::PLACEMENT,
    keys::PUBLISHES,
    keys::QUEUE,
    keys::QUEUE_TIMEOUT,
    keys::SUBSCRIBES,
    keys::TOTAL_TIMEOUT,
    keys::TRANSPORT,
    keys::ZERO_RTT,
];
/// Every label below [`OPENFAAS_PREFIX`] that has an effect.
const LABELS: &[&str] = &[
    keys::SCALE_DOWN_WINDOW,
    keys::SCALE_MAX,
    keys::SCALE_MIN,
    keys::SCALE_TARGET,
    keys::SCALE_TARGET_PROPORTION,
    keys::SCALE_TYPE,
    keys::SCALE_ZERO,
    keys::SCALE_ZERO_DURATION,
];
/// Longest part of a key that a text repeats, in characters.
const MAX_KEY_CHARS: usize = 80;

/// A label or annotation without effect. Its text is the warning for its author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredSetting {
    /// The key as the author wrote it.
    pub key: String,
    kind: &'static str,
    fault: IgnoredFault,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum IgnoredFault {
    /// The key has an effect in the other map.
    BelongsTo(&'static str),
    MeansPerhaps(&'static str),
    /// The value asks for scaling by a queue.
    NoQueue,
    Unknown,
}

impl fmt::Display for IgnoredSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key: String = self.key.chars().take(MAX_KEY_CHARS).collect();
        // Escaped, because the text goes into headers and to terminals.
        write!(f, "{} {} has no effect", self.kind, key.escape_default())?;
        match self.fault {
            IgnoredFault::BelongsTo(map) => write!(f, ": write it as {map}"),
            IgnoredFault::MeansPerhaps(other) => write!(f, ": did you mean {other}?"),
            IgnoredFault::NoQueue => write!(f, ": nearpath has no queue of messages"),
            IgnoredFault::Unknown => write!(f, ": nearpath has no such setting"),
        }
    }
}

impl FunctionSpec {
    /// Returns the labels and annotations below the platform's prefixes that have no effect: first
    /// those with unknown keys, in the order of the keys.
    pub fn ignored_settings(&self) -> Vec<IgnoredSetting> {
        let annotations = ignored_in(
            &self.annotations,
            "annotation",
            ANNOTATIONS,
            LABELS,
            "a label",
        );
        let labels = ignored_in(&self.labels, "label", LABELS, ANNOTATIONS, "an annotation");
        let queue = self.labels.get(keys::SCALE_TYPE);
        let queue = queue.filter(|value| value.parse() == Ok(ScaleMetric::Queue));
        let queue = queue.map(|_| IgnoredSetting {
            key: keys::SCALE_TYPE.to_owned(),
            kind: "label",
            fault: IgnoredFault::NoQueue,
        });
        annotations.chain(labels).chain(queue).collect()
    }
}

/// Returns the keys of one map that are not `known`; those `elsewhere` belong to the other map.
fn ignored_in<'a>(
    map: &'a BTreeMap<String, String>,
    kind: &'static str,
    known: &'static [&'static str],
    elsewhere: &'static [&'static str],
    other_map: &'static str,
) -> impl Iterator<Item = IgnoredSetting> + 'a {
    let claims_effect =
        |key: &&String| key.starts_with(OWN_PREFIX) || key.starts_with(OPENFAAS_PREFIX);
    let ignored = move |key: &&String| !known.contains(&key.as_str());
    let fault = move |key: &str| match elsewhere.contains(&key) {
        true => IgnoredFault::BelongsTo(other_map),
        false => nearest_key(key).map_or(IgnoredFault::Unknown, IgnoredFault::MeansPerhaps),
    };
    map.keys()
        .filter(claims_effect)
        .filter(ignored)
        .map(move |key| IgnoredSetting {
            key: key.clone(),
            kind,
            fault: fault(key),
        })
}

/// Compares without the prefix: a shared prefix would make every key similar.
fn nearest_key(key: &str) -> Option<&'static str> {
    let (prefix, known) = match key.strip_prefix(OWN_PREFIX) {
        Some(_) => (OWN_PREFIX, ANNOTATIONS),
        None => (OPENFAAS_PREFIX, LABELS),
    };
    let names = known.iter().map(|one| &one[prefix.len()..]);
    let nearest = find_similar(&key[prefix.len()..], names)?;
    known
        .iter()
        .copied()
        .find(|one| one[prefix.len()..] == *nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(annotations: &[&str], labels: &[&str]) -> Vec<String> {
        let map = |keys: &[&str]| {
            keys.iter()
                .map(|key| (key.to_string(), String::new()))
                .collect()
        };
        let spec = FunctionSpec {
            annotations: map(annotations),
            labels: map(labels),
            ..FunctionSpec::named("echo".parse().unwrap())
        };
        spec.ignored_settings()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn scaling_by_a_queue_has_no_effect() {
        let with_type = |metric: &str| FunctionSpec {
            labels: [(keys::SCALE_TYPE.to_owned(), metric.to_owned())].into(),
            ..FunctionSpec::named("echo".parse().unwrap())
        };
        let warnings = with_type("queue").ignored_settings();
        assert_eq!(
            warnings[0].to_string(),
            "label com.openfaas.scale.type has no effect: nearpath has no queue of messages"
        );
        assert_eq!(with_type("rps").ignored_settings(), []);
    }

    #[test]
    fn a_misspelt_key_is_named_with_the_nearest_one() {
        assert_eq!(
            warnings(
                &["nearpath.io/max-inflght"],
                &[
                    "com.openfaas.scale.mn",
                    "com.openfaas.scale.target-propotion",
                    "com.openfaas.scale.zero.duration"
                ]
            ),
            [
                "annotation nearpath.io/max-inflght has no effect: did you mean nearpath.io/max-inflight?",
                "label com.openfaas.scale.mn has no effect: did you mean com.openfaas.scale.min?",
                "label com.openfaas.scale.target-propotion has no effect: did you mean com.openfaas.scale.target-proportion?",
                "label com.openfaas.scale.zero.duration has no effect: did you mean com.openfaas.scale.zero-duration?",
            ]
        );
    }

    #[test]
    fn a_key_of_the_other_map_is_named_with_its_place() {
        assert_eq!(
            warnings(&["com.openfaas.scale.max"], &["nearpath.io/queue"]),
            [
                "annotation com.openfaas.scale.max has no effect: write it as a label",
                "label nearpath.io/queue has no effect: write it as an annotation",
            ]
        );
    }

    #[test]
    fn an_unsupported_key_is_named_and_escaped() {
        assert_eq!(
            warnings(&["com.openfaas.health.http.path", "nearpath.io/\r\nx"], &[]),
            [
                "annotation com.openfaas.health.http.path has no effect: nearpath has no such setting",
                "annotation nearpath.io/\\r\\nx has no effect: nearpath has no such setting",
            ]
        );
    }

    #[test]
    fn known_and_foreign_keys_are_silent() {
        assert_eq!(warnings(ANNOTATIONS, LABELS), [""; 0]);
        assert_eq!(
            warnings(&["topic", "prometheus.io.scrape"], &["team"]),
            [""; 0]
        );
    }

    #[test]
    fn the_list_holds_every_key() {
        let source = include_str!("keys.rs");
        let declared = |prefix: &str| source.matches(&format!("&str = \"{prefix}")).count();
        assert_eq!(
            (ANNOTATIONS.len(), LABELS.len()),
            (declared(OWN_PREFIX), declared(OPENFAAS_PREFIX)),
            "a key of keys.rs is missing here"
        );
    }
}
