//! Frames of a state stream, one JSON object a line.
//!
//! A reader ignores unknown fields and frames of unknown kinds, so nodes of different releases
//! understand each other.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use nearpath_types::{FunctionId, FunctionLoad, NodeName};

use super::NodeIncarnation;

/// Version of the protocol under `/node/v1/`.
pub const PROTOCOL: u32 = 1;
/// Maximum bytes of a line, without its line feed.
pub const MAX_LINE_BYTES: usize = 1024 * 1024;
/// Maximum functions that a node reports.
pub const MAX_FUNCTIONS: usize = 100_000;
/// Maximum functions that a writer puts in a line: about 180 KB with the longest names.
pub const MAX_LINE_FUNCTIONS: usize = 1_000;
/// Maximum bytes of a release version.
pub const MAX_VERSION_BYTES: usize = 128;

/// One line of a state stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateFrame {
    /// Facts of the node. Always the first line.
    Hello(NodeHello),
    /// Part of the whole state, which follows the hello.
    State(StatePart),
    /// Change since the previous line, once the whole state is complete.
    Change(StateChange),
    /// The node takes no new calls, or takes them again. Absent: it takes calls.
    Draining(bool),
    /// Another process of the node accepts connections from now on. Comes after the whole state.
    Replaced,
    /// Nothing has changed.
    Heartbeat,
    /// Frame of a kind that this release does not know.
    Unknown,
}

/// Facts of a node that do not change while its process runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHello {
    /// Version of the protocol: [`PROTOCOL`].
    pub protocol: u32,
    /// Name of the node, the same as in its certificate.
    pub node: NodeName,
    /// Run of the node's process.
    pub incarnation: NodeIncarnation,
    /// Release of the node, printable ASCII.
    pub version: String,
    /// Start of the process in seconds since 1970.
    pub started: u64,
}

/// Functions of the whole state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePart {
    /// Functions that this line adds.
    #[serde(default)]
    pub set: BTreeMap<FunctionId, FunctionLoad>,
    /// True in the last line of the whole state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
}

/// Functions that have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateChange {
    /// Position of the change on this stream: 1, 2, 3, …
    pub number: u64,
    /// Functions that were added or have another load.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<FunctionId, FunctionLoad>,
    /// Functions that the node can no longer run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<FunctionId>,
}

/// Error of a line that is no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameFault {
    /// No JSON object, or a field of another type.
    #[error("invalid frame: {0}")]
    Json(#[from] serde_json::Error),
    /// More than one known kind.
    #[error("invalid frame: it has {0} kinds, expected one")]
    Kinds(usize),
    /// Release version that cannot be displayed.
    #[error("invalid release version: expected 1 to {MAX_VERSION_BYTES} printable ASCII bytes")]
    Version,
}

/// A frame as JSON: an object with one of these fields.
#[derive(Default, Serialize, Deserialize)]
struct FrameFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    hello: Option<NodeHello>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StatePart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<StateChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    draining: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat: Option<bool>,
}

impl StateFrame {
    /// Reads a line, without its line feed.
    ///
    /// # Errors
    /// When the line is no JSON object, or a known field has a wrong value.
    pub fn parse(line: &[u8]) -> Result<Self, FrameFault> {
        let fields: FrameFields = serde_json::from_slice(line)?;
        let kinds = fields.into_kinds();
        let count = kinds.iter().flatten().count();
        match kinds.into_iter().flatten().next() {
            _ if count > 1 => Err(FrameFault::Kinds(count)),
            Some(Self::Hello(hello)) if !is_release_version(&hello.version) => {
                Err(FrameFault::Version)
            }
            kind => Ok(kind.unwrap_or(Self::Unknown)),
        }
    }

    /// Writes the frame as a line with its line feed.
    pub fn to_line(&self) -> Bytes {
        let fields = FrameFields::from(self.clone());
        let mut line = serde_json::to_vec(&fields).expect("maps with text keys are JSON");
        line.push(b'\n');
        line.into()
    }
}

impl FrameFields {
    fn into_kinds(self) -> [Option<StateFrame>; 6] {
        [
            self.hello.map(StateFrame::Hello),
            self.state.map(StateFrame::State),
            self.change.map(StateFrame::Change),
            self.draining.map(StateFrame::Draining),
            self.replaced
                .and_then(|is_so| is_so.then_some(StateFrame::Replaced)),
            self.heartbeat.map(|_| StateFrame::Heartbeat),
        ]
    }
}

impl From<StateFrame> for FrameFields {
    fn from(frame: StateFrame) -> Self {
        let mut fields = Self::default();
        match frame {
            StateFrame::Hello(hello) => fields.hello = Some(hello),
            StateFrame::State(part) => fields.state = Some(part),
            StateFrame::Change(change) => fields.change = Some(change),
            StateFrame::Draining(is_draining) => fields.draining = Some(is_draining),
            StateFrame::Replaced => fields.replaced = Some(true),
            StateFrame::Heartbeat => fields.heartbeat = Some(true),
            StateFrame::Unknown => {}
        }
        fields
    }
}

/// Returns whether a release version can go into logs and tables as it is.
fn is_release_version(text: &str) -> bool {
    (1..=MAX_VERSION_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<StateFrame, FrameFault> {
        StateFrame::parse(line.as_bytes())
    }

    #[test]
    fn unknown_kinds_and_fields_are_ignored() {
        assert_eq!(
            parse(r#"{"weather":{"rain":[1]}}"#).unwrap(),
            StateFrame::Unknown
        );
        let line =
            r#"{"state":{"set":{"a.b":{"ready":1,"requests":2,"cpu":3}},"zone":"x"},"at":4}"#;
        let StateFrame::State(part) = parse(line).unwrap() else {
            panic!("a part of the state");
        };
        let expected = FunctionLoad {
            ready: 1,
            requests: 2,
        };
        assert_eq!(part.set.into_values().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn faults_are_named() {
        let hello = |version: &str| {
            let version = serde_json::to_string(version).unwrap();
            format!(
                r#"{{"hello":{{"protocol":1,"node":"b","incarnation":"0123456789abcdef","version":{version},"started":1}}}}"#
            )
        };
        assert!(matches!(parse(&hello("0.1.0")), Ok(StateFrame::Hello(_))));
        let long = "1".repeat(MAX_VERSION_BYTES + 1);
        for version in ["", "\u{1b}[2J", "1 2", &long] {
            assert!(matches!(parse(&hello(version)), Err(FrameFault::Version)));
        }
        let two = r#"{"draining":true,"heartbeat":true}"#;
        assert!(matches!(parse(two), Err(FrameFault::Kinds(2))));
        for bad in [
            "",
            "{",
            "null",
            r#"{"change":{"set":{}}}"#,
            r#"{"change":{"number":-1}}"#,
            r#"{"state":{"set":{"A":{"ready":1,"requests":0}}}}"#,
            r#"{"state":{"set":{"a":{"ready":4294967296,"requests":0}}}}"#,
        ] {
            assert!(matches!(parse(bad), Err(FrameFault::Json(_))), "{bad}");
        }
    }

    #[test]
    fn the_longest_part_fits_a_line() {
        let label = |number: usize| format!("{}{number:05}", "x".repeat(58));
        let load = FunctionLoad {
            ready: u32::MAX,
            requests: u32::MAX,
        };
        let id = |number| format!("{0}.{0}", label(number)).parse().unwrap();
        let set = (0..MAX_LINE_FUNCTIONS)
            .map(|number| (id(number), load))
            .collect();
        let line = StateFrame::Change(StateChange {
            number: u64::MAX,
            set,
            removed: Vec::new(),
        });
        assert!(line.to_line().len() < MAX_LINE_BYTES / 4);
    }
}
