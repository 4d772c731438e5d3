//! `contract/vectors/node.json` matches the code to the byte.
//!
//! `NEARPATH_WRITE_VECTORS=1` writes the file.

use std::path::Path;

use nearpath_internode::peer_view::{PeerView, ViewFault};
use nearpath_internode::protocol::{
    AppliedReport, NodeHello, NodeIncarnation, PROTOCOL, PingResponse, StateChange, StateFrame,
    StatePart,
};
use nearpath_types::{FunctionId, FunctionLoad};
use serde_json::{Value, json};

use crate::fixture::name;

const INCARNATION: NodeIncarnation = NodeIncarnation(0x0123_4567_89ab_cdef);

fn function(id: &str, ready: u32, requests: u32) -> (FunctionId, FunctionLoad) {
    (id.parse().unwrap(), FunctionLoad { ready, requests })
}

fn hello() -> StateFrame {
    hello_of(INCARNATION)
}

fn hello_of(incarnation: NodeIncarnation) -> StateFrame {
    StateFrame::Hello(NodeHello {
        protocol: PROTOCOL,
        node: name("b"),
        incarnation,
        version: "0.1.0".to_owned(),
        started: 1_764_430_000,
    })
}

fn part(functions: &[(FunctionId, FunctionLoad)], complete: bool) -> StateFrame {
    let set = functions.iter().cloned().collect();
    StateFrame::State(StatePart { set, complete })
}

fn change(number: u64, set: &[(FunctionId, FunctionLoad)], removed: &[&str]) -> StateFrame {
    StateFrame::Change(StateChange {
        number,
        set: set.iter().cloned().collect(),
        removed: removed.iter().map(|id| id.parse().unwrap()).collect(),
    })
}

/// A stream from its first line, which every reader must understand.
fn stream_frames() -> Vec<StateFrame> {
    vec![
        hello(),
        StateFrame::Draining(true),
        part(&[function("echo.openfaas-fn", 2, 5)], false),
        part(&[function("x.dev", 0, 0)], true),
        StateFrame::Heartbeat,
        change(1, &[function("echo.openfaas-fn", 3, 0)], &["x.dev"]),
        change(2, &[function("y.dev", 1, u32::MAX)], &[]),
        StateFrame::Draining(false),
        change(3, &[], &["echo.openfaas-fn"]),
    ]
}

/// A stream of a process that is replaced, and that of its successor.
fn handover_frames() -> [Vec<StateFrame>; 2] {
    let echo = |ready| part(&[function("echo.openfaas-fn", ready, 0)], true);
    let successor = NodeIncarnation(0xfedc_ba98_7654_3210);
    [
        vec![hello(), echo(1), StateFrame::Replaced],
        vec![hello_of(successor), echo(2)],
    ]
}

/// Streams that a reader must refuse, each at its last line.
fn refused_streams() -> [(&'static str, Vec<StateFrame>); 6] {
    [
        ("no hello", vec![StateFrame::Heartbeat]),
        ("second hello", vec![hello(), hello()]),
        (
            "change before the whole",
            vec![hello(), change(1, &[], &[])],
        ),
        ("gap", vec![hello(), part(&[], true), change(2, &[], &[])]),
        (
            "whole after the whole",
            vec![hello(), part(&[], true), part(&[], true)],
        ),
        (
            "replaced before the whole",
            vec![hello(), StateFrame::Replaced],
        ),
    ]
}

const IGNORED: [&str; 3] = [
    r#"{}"#,
    r#"{"weather":{"rain":1}}"#,
    r#"{"heartbeat":true,"load":0.5}"#,
];

const INVALID: [&str; 6] = [
    "",
    "garbage",
    r#"{"draining":true,"heartbeat":true}"#,
    r#"{"change":{"set":{}}}"#,
    r#"{"state":{"set":{"Echo.dev":{"ready":1,"requests":0}}}}"#,
    r#"{"hello":{"protocol":1,"node":"b","incarnation":"1","version":"0.1.0","started":1}}"#,
];

fn text_of(frame: &StateFrame) -> String {
    let line = frame.to_line();
    String::from_utf8(line[..line.len() - 1].to_vec()).unwrap()
}

fn vectors() -> Value {
    let texts = |frames: &[StateFrame]| frames.iter().map(text_of).collect::<Vec<_>>();
    let refused = refused_streams();
    let refused = refused
        .iter()
        .map(|(about, frames)| json!({ "about": about, "lines": texts(frames) }));
    let ping = PingResponse {
        time: 1_764_430_000_123_456,
        incarnation: INCARNATION,
    };
    let report = AppliedReport {
        incarnation: INCARNATION,
        is_draining: true,
    };
    json!({
        "about": "Examples for contract/node.md. `stream` is a state stream without its line feeds. `handover` is a stream that ends with its process's replacement, and the stream that follows; functions stay meanwhile. Each of `refused` is refused at its last line. `ignored` lines are valid and change nothing; `invalid` ones are no frames. `report` is the path of a ping, `ping` its response.",
        "stream": texts(&stream_frames()),
        "handover": handover_frames().map(|frames| texts(&frames)),
        "refused": refused.collect::<Vec<_>>(),
        "ignored": IGNORED,
        "invalid": INVALID,
        "report": report.to_path(),
        "ping": serde_json::to_string(&ping).unwrap(),
    })
}

fn lines_of(value: &Value) -> Vec<&str> {
    let lines = value.as_array().unwrap().iter();
    lines.map(|line| line.as_str().unwrap()).collect()
}

fn apply_lines(lines: &[&str]) -> Result<PeerView, ViewFault> {
    let mut view = PeerView::new(name("b"));
    for line in lines {
        view.apply(StateFrame::parse(line.as_bytes()).unwrap())?;
    }
    Ok(view)
}

#[test]
fn the_vectors_match_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contract/vectors/node.json");
    if std::env::var_os("NEARPATH_WRITE_VECTORS").is_some() {
        std::fs::write(&path, format!("{:#}\n", vectors())).unwrap();
    }
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written, vectors());
    let view = apply_lines(&lines_of(&written["stream"])).unwrap();
    let ids: Vec<_> = view
        .functions()
        .iter()
        .map(|(id, _)| id.to_string())
        .collect();
    assert_eq!((ids, view.is_draining()), (vec!["y.dev".to_owned()], false));
    let [ended, followed] = [0, 1].map(|at| lines_of(&written["handover"][at]));
    let mut view = apply_lines(&ended).unwrap();
    view.begin_subscription();
    for line in followed {
        assert_eq!(view.functions().len(), 1, "before {line}");
        view.apply(StateFrame::parse(line.as_bytes()).unwrap())
            .unwrap();
    }
    for refused in written["refused"].as_array().unwrap() {
        let lines = lines_of(&refused["lines"]);
        let (_, before) = lines.split_last().unwrap();
        assert!(
            apply_lines(before).is_ok() && apply_lines(&lines).is_err(),
            "{refused}"
        );
    }
    for line in lines_of(&written["ignored"]) {
        let frame = StateFrame::parse(line.as_bytes()).unwrap();
        assert!(
            matches!(frame, StateFrame::Unknown | StateFrame::Heartbeat),
            "{line}"
        );
    }
    for line in lines_of(&written["invalid"]) {
        assert!(StateFrame::parse(line.as_bytes()).is_err(), "{line}");
    }
}
