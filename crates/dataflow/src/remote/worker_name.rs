//! Conversion between worker names and SPIFFE IDs (`contract/dataflow.md`, "Identities").
//!
//! A worker's name is `STAGE.NUMBER` ([`crate::topology`]). Its SPIFFE ID holds the stage as a
//! function name and the number as an instance number.
//!
//! Some names are encoded: stages that are no function names, such as `word_count`, and names
//! without a number. The encoding begins with `x-` (with a number) or `one-` (without). Each
//! byte except `a-z` and `0-9` becomes `-` and two hexadecimal digits.

use nearpath_p2p::ticket::JobName;
use nearpath_types::spiffe::SpiffeRole;
use nearpath_types::{FunctionName, InstanceId, SpiffeId};

// Both prefixes are part of `contract/dataflow.md`, "Identities". Stages that begin with one are
// escaped too: otherwise two names would share an identity.
const NUMBERED_PREFIX: &str = "x-";
const UNNUMBERED_PREFIX: &str = "one-";

/// Worker name without a SPIFFE ID: its function name would be too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid name `{0}` for a remote worker: use up to 60 lower-case letters, digits and `-` (other characters count three times)"
)]
pub struct InvalidWorkerName(pub String);

/// Returns the SPIFFE ID of a worker name.
///
/// # Errors
/// When the name is too long.
pub fn to_spiffe_id(job: &JobName, name: &str) -> Result<SpiffeId, InvalidWorkerName> {
    // Shortened for the error text: the name may be of any length.
    let invalid_name = || InvalidWorkerName(name.chars().take(100).collect());
    let (function, number) = match split_number(name) {
        Some((stage, number)) => (
            plain_label(stage).unwrap_or_else(|| escape_label(NUMBERED_PREFIX, stage)),
            number,
        ),
        // The contract gives names without a number the instance number 0.
        None => (escape_label(UNNUMBERED_PREFIX, name), 0),
    };
    let function: FunctionName = function.parse().map_err(|_| invalid_name())?;
    Ok(job.worker_identity(&function, number))
}

/// Returns the worker name of a SPIFFE ID; `None` if it belongs to no worker of this job.
pub fn from_spiffe_id(job: &JobName, id: &SpiffeId) -> Option<String> {
    let SpiffeRole::Instance(function, InstanceId(number)) = &id.role else {
        return None;
    };
    let text = function.name.as_str();
    let name = match (
        text.strip_prefix(UNNUMBERED_PREFIX),
        text.strip_prefix(NUMBERED_PREFIX),
    ) {
        (Some(rest), _) => unescape_label(rest)?,
        (None, Some(rest)) => format!("{}.{number}", unescape_label(rest)?),
        (None, None) => format!("{text}.{number}"),
    };
    // Several identities could decode to one name. Only the canonical one is valid.
    (to_spiffe_id(job, &name).as_ref() == Ok(id)).then_some(name)
}

/// Splits `STAGE.NUMBER`. Digits with leading zeros are no number here, because `map.3` and
/// `map.03` need different identities.
fn split_number(name: &str) -> Option<(&str, u64)> {
    let (stage, digits) = name.rsplit_once('.')?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some((stage, number))
}

/// Returns the stage itself if it needs no encoding.
fn plain_label(stage: &str) -> Option<String> {
    let has_reserved_prefix =
        stage.starts_with(NUMBERED_PREFIX) || stage.starts_with(UNNUMBERED_PREFIX);
    (!has_reserved_prefix && stage.parse::<FunctionName>().is_ok()).then(|| stage.to_owned())
}

fn escape_label(prefix: &str, text: &str) -> String {
    let mut label = prefix.to_owned();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' => label.push(char::from(byte)),
            other => label += &format!("-{other:02x}"),
        }
    }
    label
}

fn unescape_label(label: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), label.bytes());
    while let Some(byte) = rest.next() {
        match byte {
            b'-' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_worker_names_have_readable_identities() {
        let job: JobName = "sort".parse().unwrap();
        for (name, id) in [
            ("map.3", "spiffe://sort/ns/job/fn/map/instance/3"),
            (
                "word_count.0",
                "spiffe://sort/ns/job/fn/x-word-5fcount/instance/0",
            ),
            ("leader", "spiffe://sort/ns/job/fn/one-leader/instance/0"),
            ("map.03", "spiffe://sort/ns/job/fn/one-map-2e03/instance/0"),
            ("x-a.1", "spiffe://sort/ns/job/fn/x-x-2da/instance/1"),
        ] {
            assert_eq!(to_spiffe_id(&job, name).unwrap().to_string(), id);
            assert_eq!(
                from_spiffe_id(&job, &id.parse().unwrap()).as_deref(),
                Some(name)
            );
        }
        let long = to_spiffe_id(&job, &"M".repeat(40)).unwrap_err().to_string();
        assert!(long.contains("lower-case"), "{long}");
    }

    #[test]
    fn identities_that_are_no_workers_have_no_name() {
        let job: JobName = "sort".parse().unwrap();
        for id in [
            "spiffe://sort/node/a/gateway",
            "spiffe://other/ns/job/fn/map/instance/3",
            "spiffe://sort/ns/else/fn/map/instance/3",
            "spiffe://sort/ns/job/fn/one-leader/instance/1",
            "spiffe://sort/ns/job/fn/x-map/instance/1",
        ] {
            assert_eq!(from_spiffe_id(&job, &id.parse().unwrap()), None, "{id}");
        }
    }

    proptest! {
        #[test]
        fn every_name_has_its_own_identity(name in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,18}") {
            let job: JobName = "sort".parse().unwrap();
            let id = to_spiffe_id(&job, &name).unwrap();
            prop_assert_eq!(from_spiffe_id(&job, &id.to_string().parse().unwrap()), Some(name));
        }
    }
}
