//! Which identity a worker's name is, and back.
//!
//! A worker is called `STAGE.NUMBER` ([`crate::topology`]), which is almost the name of a function and the number
//! of an instance. Where it is not, because a stage is called `word_count` or a worker has no number, letters that a function
//! cannot have are written as `-` and two hexadecimal digits, behind `x-` (with a number) or `one-` (without).

use nearpath_p2p::ticket::Job;
use nearpath_types::spiffe::Role;
use nearpath_types::{FunctionName, InstanceId, SpiffeId};

const NUMBERED: &str = "x-";
const SINGLE: &str = "one-";

/// A name that is no worker's elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot be the name of a worker elsewhere: take up to 60 lower-case letters, digits and `-` (others count three times)"
)]
pub struct BadName(pub String);

/// Who has this name.
///
/// # Errors
/// When it is too long.
pub fn identity(job: &Job, name: &str) -> Result<SpiffeId, BadName> {
    let bad = || BadName(name.chars().take(100).collect());
    let (function, number) = match numbered(name) {
        Some((stage, number)) => (plain(stage).unwrap_or_else(|| escaped(NUMBERED, stage)), number),
        None => (escaped(SINGLE, name), 0),
    };
    let function: FunctionName = function.parse().map_err(|_| bad())?;
    Ok(job.worker(&function, number))
}

/// The name of an identity; `None`: it has none in this job.
pub fn of(job: &Job, id: &SpiffeId) -> Option<String> {
    let Role::Instance(function, InstanceId(number)) = &id.role else { return None };
    let text = function.name.as_str();
    let name = match (text.strip_prefix(SINGLE), text.strip_prefix(NUMBERED)) {
        (Some(rest), _) => unescaped(rest)?,
        (None, Some(rest)) => format!("{}.{number}", unescaped(rest)?),
        (None, None) => format!("{text}.{number}"),
    };
    (identity(job, &name).as_ref() == Ok(id)).then_some(name)
}

/// One spelling only.
fn numbered(name: &str) -> Option<(&str, u64)> {
    let (stage, digits) = name.rsplit_once('.')?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some((stage, number))
}

fn plain(stage: &str) -> Option<String> {
    let means_something = stage.starts_with(NUMBERED) || stage.starts_with(SINGLE);
    (!means_something && stage.parse::<FunctionName>().is_ok()).then(|| stage.to_owned())
}

fn escaped(prefix: &str, text: &str) -> String {
    let mut label = prefix.to_owned();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' => label.push(char::from(byte)),
            other => label += &format!("-{other:02x}"),
        }
    }
    label
}

fn unescaped(label: &str) -> Option<String> {
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
    fn what_people_call_workers() {
        let job: Job = "sort".parse().unwrap();
        for (name, id) in [
            ("map.3", "spiffe://sort/ns/job/fn/map/instance/3"),
            ("word_count.0", "spiffe://sort/ns/job/fn/x-word-5fcount/instance/0"),
            ("leader", "spiffe://sort/ns/job/fn/one-leader/instance/0"),
            ("map.03", "spiffe://sort/ns/job/fn/one-map-2e03/instance/0"),
            ("x-a.1", "spiffe://sort/ns/job/fn/x-x-2da/instance/1"),
        ] {
            assert_eq!(identity(&job, name).unwrap().to_string(), id);
            assert_eq!(of(&job, &id.parse().unwrap()).as_deref(), Some(name));
        }
        let long = identity(&job, &"M".repeat(40)).unwrap_err().to_string();
        assert!(long.contains("lower-case"), "{long}");
    }

    #[test]
    fn who_is_no_worker_has_no_name() {
        let job: Job = "sort".parse().unwrap();
        for id in [
            "spiffe://sort/node/a/gateway",
            "spiffe://other/ns/job/fn/map/instance/3",
            "spiffe://sort/ns/else/fn/map/instance/3",
            "spiffe://sort/ns/job/fn/one-leader/instance/1",
            "spiffe://sort/ns/job/fn/x-map/instance/1",
        ] {
            assert_eq!(of(&job, &id.parse().unwrap()), None, "{id}");
        }
    }

    proptest! {
        #[test]
        fn no_two_names_are_one_identity(name in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,18}") {
            let job: Job = "sort".parse().unwrap();
            let id = identity(&job, &name).unwrap();
            prop_assert_eq!(of(&job, &id.to_string().parse().unwrap()), Some(name));
        }
    }
}
