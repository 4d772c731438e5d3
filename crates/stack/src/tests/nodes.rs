//! The list of nodes, and the nodes of functions.

use std::io;
use std::path::{Path, PathBuf};

use nearpath_types::{FunctionPolicy, NodeAddresses, policy};
use proptest::prelude::*;

use super::{TestContext, problem_lines, report_of, valid_stack};
use crate::{StackContext, StackDocument, StackReport, parse_nodes, parse_stack};

fn read_list(text: &str) -> Result<NodeAddresses, StackReport> {
    let document = StackDocument {
        name: "nodes.yml",
        text,
        folder: Path::new("/stack"),
    };
    parse_nodes(document).map(|parsed| parsed.nodes)
}

fn first_line(text: &str) -> String {
    let report = read_list(text).unwrap_err().to_string();
    report.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn addresses_have_a_host_and_perhaps_a_port() {
    let nodes = read_list(
        "nodes:\n  a: {address: 10.0.0.1:9000}\n  b.lan: {address: host_1.example}\n  c: {address: '[fd00::1]'}\n  d: {address: '[fd00::1]:1'}\n",
    )
    .unwrap();
    let texts: Vec<_> = nodes
        .iter()
        .map(|(name, address)| format!("{name}={address}"))
        .collect();
    assert_eq!(
        texts,
        [
            "a=10.0.0.1:9000",
            "b.lan=host_1.example:8444",
            "c=[fd00::1]:8444",
            "d=[fd00::1]:1"
        ]
    );
}

#[test]
fn every_fault_of_the_list_has_a_position() {
    for (text, wanted) in [
        ("", "1:1: error: there is no node in this file"),
        ("nodes: {}\n", "1:1: error: there is no node in this file"),
        ("nodes: [a]\n", "1:8: error: nodes must be a map"),
        (
            "nodes:\n  A: {address: x}\n",
            "2:3: error: invalid node name \"A\"",
        ),
        ("nodes:\n  a: {}\n", "2:3: error: node a has no address"),
        (
            "nodes:\n  a: {address: }\n",
            "2:3: error: node a has no address",
        ),
        (
            "nodes:\n  a: {address: 'x:0'}\n",
            "2:16: error: `x:0` is no address of a node",
        ),
        (
            "nodes:\n  a: {address: 'x:http'}\n",
            "2:16: error: `x:http` is no",
        ),
        (
            "nodes:\n  a: {address: 'x y'}\n",
            "2:16: error: `x y` is no",
        ),
        (
            "nodes:\n  a: {address: '::1'}\n",
            "2:16: error: `::1` is no",
        ),
        (
            "nodes:\n  a: {address: 'http://x'}\n",
            "2:16: error: `http://x` is no",
        ),
        (
            "nodes:\n  a: {address: x}\n  a: {address: y}\n",
            "3:3: error: `a` is written twice",
        ),
    ] {
        let line = first_line(text);
        assert!(
            line.starts_with(&format!("nodes.yml:{wanted}")),
            "{text:?}: {line}"
        );
    }
}

#[test]
fn an_unknown_key_of_the_list_is_a_warning() {
    let text = "nodes:\n  a: {address: x, adress: y}\nnods: {}\n";
    let document = StackDocument {
        name: "nodes.yml",
        text,
        folder: Path::new("/"),
    };
    let warnings = parse_nodes(document).unwrap().warnings.to_string();
    assert!(warnings.contains("nodes.yml:2:19: warning: unknown key `adress` in node a"));
    assert!(warnings.contains("nodes.yml:3:1: warning: unknown key `nods`"));
}

#[test]
fn nodes_of_a_function_become_an_annotation() {
    let stack = valid_stack(
        "functions:\n  f:\n    image: x\n    nodes: [b, a, b]\n    annotations: {nearpath.io/nodes: c}\n  g: {image: x, nodes: []}\n",
    );
    let [f, g] = &stack.functions[..] else {
        panic!("two functions")
    };
    assert_eq!(f.annotations[policy::NODES], "c,b,a");
    assert_eq!(FunctionPolicy::from_spec(f).unwrap().nodes.len(), 3);
    assert!(g.annotations.is_empty(), "it runs on every node");
}

#[test]
fn nodes_of_a_function_are_names() {
    assert_eq!(
        problem_lines("functions:\n  f: {image: x, nodes: [a, 'b,c']}\n")[0]
            .split(" (")
            .next()
            .unwrap(),
        "2:28: error: invalid node name \"b,c\": expected labels of lower-case letters, digits and '-', separated by dots, with a letter in the last one, at most 253 octets"
    );
    let report = report_of("functions:\n  f: {image: x, nodes: a}\n").to_string();
    assert!(report.contains("nodes must be a list"), "{report}");
}

/// A context that knows the nodes `front` and `store`.
struct KnownNodes(NodeAddresses);

impl StackContext for KnownNodes {
    fn env_variable(&self, name: &str) -> Option<String> {
        TestContext.env_variable(name)
    }

    fn read_file(&self, path: &Path) -> io::Result<String> {
        TestContext.read_file(path)
    }

    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf> {
        TestContext.resolve_folder(path)
    }

    fn known_nodes(&self) -> Option<&NodeAddresses> {
        Some(&self.0)
    }
}

fn read_with_nodes(text: &str) -> Result<(), String> {
    let nodes = ["front", "store"].map(|name| (name.parse().unwrap(), "x:1".to_owned()));
    let document = StackDocument {
        name: "stack.yml",
        text,
        folder: Path::new("/stack"),
    };
    let parsed = parse_stack(document, &KnownNodes(nodes.into()));
    parsed.map(drop).map_err(|report| report.to_string())
}

#[test]
fn an_unknown_node_is_named_with_the_nearest_one() {
    let fault = read_with_nodes("functions:\n  f: {image: x, nodes: [front, stor]}\n").unwrap_err();
    assert!(
        fault.starts_with("stack.yml:2:32: error: function f names node `stor`, which is not"),
        "{fault}"
    );
    assert!(fault.contains("help: did you mean `store`?"), "{fault}");
    let fault = read_with_nodes(
        "functions:\n  f:\n    image: x\n    annotations:\n      nearpath.io/nodes: zzz\n",
    )
    .unwrap_err();
    assert!(
        fault.starts_with("stack.yml:5:7: error: function f names"),
        "{fault}"
    );
    assert!(
        fault.contains("help: add `zzz` to the list of nodes"),
        "{fault}"
    );
    assert_eq!(
        read_with_nodes("functions:\n  f: {image: x, nodes: [front]}\n"),
        Ok(())
    );
}

proptest! {
    #[test]
    fn any_text_is_a_list_or_a_report(text in "\\PC{0,80}") {
        if let Err(report) = read_list(&text) {
            prop_assert!(report.has_errors());
        }
    }

    #[test]
    fn any_address_keeps_its_host(text in "[a-z0-9:.\\[\\]-]{1,20}") {
        if let Ok(nodes) = read_list(&format!("nodes:\n  a: {{address: \"{text}\"}}\n")) {
            let address = nodes.values().next().unwrap();
            let (host, port) = address.rsplit_once(':').unwrap();
            prop_assert!(text.starts_with(host) && port.parse::<u16>().unwrap() > 0);
        }
    }
}
