//! The list of nodes, `nodes.yml`: the name of each node of an application, and its address.

use std::path::Path;

use nearpath_types::{NodeAddresses, NodeName};

use crate::context::StackContext;
use crate::problem::{ProblemList, StackReport};
use crate::source::{SourceSpan, SourceText};
use crate::yaml::typed_nodes::{SpannedText, shorten};
use crate::yaml::{self, YamlEntry, YamlNode};
use crate::{StackDocument, StackReadError};

/// Port of a node's address that names none: the port for calls between nodes.
pub const DEFAULT_NODE_PORT: u16 = 8444;

/// Longest host name, RFC 1035 section 2.3.4.
const MAX_HOST_BYTES: usize = 253;

/// Nodes of an application, with the warnings of their file.
#[derive(Debug, Clone)]
pub struct ParsedNodes {
    /// Address of each node, `HOST:PORT`, by name.
    pub nodes: NodeAddresses,
    /// Contains only warnings.
    pub warnings: StackReport,
}

/// Reads the list of nodes at `path`.
///
/// # Errors
/// See [`StackReadError`].
pub fn read_nodes(path: &Path, context: &dyn StackContext) -> Result<ParsedNodes, StackReadError> {
    let text = context.read_file(path)?;
    let document = StackDocument {
        name: &path.display().to_string(),
        text: &text,
        folder: path.parent().unwrap_or(Path::new(".")),
    };
    parse_nodes(document).map_err(StackReadError::Invalid)
}

/// Reads a list of nodes from text. Variables are not replaced: the list is the same on every node.
///
/// # Errors
/// When something is wrong in it; the report then has at least one error, and the warnings.
pub fn parse_nodes(document: StackDocument<'_>) -> Result<ParsedNodes, StackReport> {
    let source = SourceText::without_substitution(document.name, document.text);
    let mut problems = ProblemList::new(&source);
    let root = yaml::parse_yaml(&source, &mut problems);
    let nodes = root.map(|root| read_root(&root, &mut problems));
    if nodes.as_ref().is_none_or(NodeAddresses::is_empty) && problems.problems.is_empty() {
        problems
            .add_error(SourceSpan::default(), "there is no node in this file")
            .set_help("write `nodes:`, and below it a line `NAME: {address: HOST:PORT}` per node");
    }
    let report = StackReport::sorted(problems.problems);
    match nodes {
        Some(nodes) if !report.has_errors() => Ok(ParsedNodes {
            nodes,
            warnings: report,
        }),
        _ => Err(report),
    }
}

fn read_root(root: &YamlNode, problems: &mut ProblemList<'_>) -> NodeAddresses {
    let mut nodes = NodeAddresses::new();
    for entry in problems.expect_map(root, "a list of nodes") {
        match entry.key.as_str() {
            "nodes" => nodes = read_entries(&entry.value, problems),
            _ => problems.warn_unknown_key(entry, "the file", &["nodes"]),
        }
    }
    nodes
}

fn read_entries(node: &YamlNode, problems: &mut ProblemList<'_>) -> NodeAddresses {
    let entries = problems.expect_map(node, "nodes").iter();
    entries
        .filter_map(|entry| read_entry(entry, problems))
        .collect()
}

/// Reads one node; `None` when its name or its address is invalid.
fn read_entry(entry: &YamlEntry, problems: &mut ProblemList<'_>) -> Option<(NodeName, String)> {
    let name = entry.key.parse::<NodeName>();
    if let Err(error) = &name {
        problems.add_error(entry.span, error.to_string());
    }
    let section = format!("node {}", shorten(&entry.key));
    let mut address = None;
    for field in problems.expect_map(&entry.value, &section) {
        match field.key.as_str() {
            "address" => address = problems.expect_text(&field.value, "address"),
            _ => problems.warn_unknown_key(field, &section, &["address"]),
        }
    }
    let Some(address) = address else {
        problems
            .add_error(entry.span, format!("{section} has no address"))
            .set_help("add `address: HOST:PORT`, or `address: HOST`");
        return None;
    };
    let address = check_address(&address, problems)?;
    Some((name.ok()?, address))
}

/// Checks `HOST:PORT` or `HOST`; returns it with its port.
fn check_address(address: &SpannedText, problems: &mut ProblemList<'_>) -> Option<String> {
    let (host, port) = split_port(&address.text);
    let port = port.map_or(Ok(DEFAULT_NODE_PORT), str::parse);
    match port {
        Ok(port) if port != 0 && is_host(host) => Some(format!("{host}:{port}")),
        _ => {
            let text = format!("`{}` is no address of a node", shorten(&address.text));
            problems.add_error(address.span, text).set_help(format!(
                "write HOST:PORT or HOST (port {DEFAULT_NODE_PORT}); HOST is a name, an IPv4 address or an IPv6 address in brackets"
            ));
            None
        }
    }
}

fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        // The last colon of `[::1]` is inside of the brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn is_host(host: &str) -> bool {
    if let Some(inner) = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        return inner.parse::<std::net::Ipv6Addr>().is_ok();
    }
    // Underscores too: names of local resolvers have them.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_allowed);
    host.len() <= MAX_HOST_BYTES && host.split('.').all(is_label)
}
