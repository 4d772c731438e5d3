//! Queries of all other nodes, side by side. A node that does not answer is named, never left out
//! silently.

use axum::body::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderName, HeaderValue};
use nearpath_types::missing_nodes::{MISSING_NODES_HEADER, format_missing_nodes};
use nearpath_types::{MissingNode, NodeName};
use serde::de::DeserializeOwned;

use crate::controller::Controller;

/// Replies of the other nodes.
#[derive(Debug)]
pub(crate) struct PeerReplies<T> {
    /// Replies by node, in the order of their names.
    pub(crate) replies: Vec<(NodeName, T)>,
    /// Nodes without a reply.
    pub(crate) missing: Vec<MissingNode>,
}

/// Sends `GET path` to all other nodes and reads their replies with `read`.
pub(crate) async fn ask_peers<T>(
    it: &Controller,
    path: &str,
    read: impl Fn(&[u8]) -> Result<T, String>,
) -> PeerReplies<T> {
    let nodes = it.inner.queried_peers();
    let queries = nodes.into_iter().map(async |node| {
        let reply = fetch(it, &node, path).await;
        (node, reply)
    });
    let (mut replies, mut missing) = (Vec::new(), Vec::new());
    for (node, reply) in join_all(queries).await {
        match reply.and_then(|reply| read(&reply)) {
            Ok(reply) => replies.push((node, reply)),
            Err(cause) => missing.push(MissingNode::new(node.as_str(), cause)),
        }
    }
    PeerReplies { replies, missing }
}

async fn fetch(it: &Controller, node: &NodeName, path: &str) -> Result<Bytes, String> {
    match it.inner.peers() {
        Some(peers) => peers.fetch(node, path.to_owned()).await,
        None => Err("this node has no connections to others".to_owned()),
    }
}

/// Reads a reply as JSON.
pub(crate) fn read_json<T: DeserializeOwned>(reply: &[u8]) -> Result<T, String> {
    serde_json::from_slice(reply).map_err(|error| format!("its reply cannot be read: {error}"))
}

/// Returns the header field that names missing nodes; no field without any.
pub(crate) fn missing_header(missing: &[MissingNode]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if missing.is_empty() {
        return headers;
    }
    // Names and encoded causes are visible ASCII.
    if let Ok(value) = HeaderValue::try_from(format_missing_nodes(missing)) {
        headers.insert(HeaderName::from_static(MISSING_NODES_HEADER), value);
    }
    headers
}
