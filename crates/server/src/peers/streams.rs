//! Streams of bytes between functions on different nodes.

use std::time::Duration;

use http::Request;
use nearpath_gateway::NodeResponse;
use nearpath_internode::{PeerClient, parse_stream_request, stream_accepted, stream_refused};
use nearpath_node::{Node, RemoteStream, StreamHook};
use nearpath_types::NodeName;
use nearpath_wire::Body;

/// Time beyond the cold timeout, so that the called node's own refusal arrives.
const REFUSAL_GRACE: Duration = Duration::from_secs(2);

/// Returns the hook with which this node opens streams.
pub(super) fn stream_hook(client: PeerClient) -> StreamHook {
    StreamHook::from_hook(move |request, policy| {
        let client = client.clone();
        Box::pin(async move {
            let limit = policy.cold_timeout + REFUSAL_GRACE;
            let opened = client.open_stream(&request, &policy, limit).await?;
            Ok(RemoteStream {
                node: opened.node,
                stream: Box::new(opened.stream),
                lost: opened.lost,
            })
        })
    })
}

/// Answers another node's request for a stream to an instance here.
pub(crate) async fn respond(
    node: &Node,
    client: &PeerClient,
    peer: &NodeName,
    request: Request<Body>,
) -> NodeResponse {
    let request = match parse_stream_request(&request) {
        Ok(request) => request,
        Err(response) => return (*response).into(),
    };
    // From now on: the node may go down while an instance starts.
    let lost = client.wait_lost(peer);
    match node.accept_stream(peer, request, lost).await {
        Ok(stream) => NodeResponse {
            response: stream_accepted(),
            upgrade: Some(Box::new(|peer| Box::pin(stream.relay(peer)))),
        },
        Err(error) => stream_refused(&error).into(),
    }
}
