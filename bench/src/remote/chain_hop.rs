//! A chain of functions on a row of machines: each calls the next one over a new connection before
//! it responds.

use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use nearpath_testkit::lab::LabNode;
use nearpath_wire::quic::ServedCall;
use nearpath_wire::zero_rtt::Provision;

use super::caller::{CalleeAddress, RemoteCaller, SizedCall};
use super::identities::CallIdentity;
use super::{BenchError, RemoteTransport, all_transports};

/// Bytes of every response.
const RESPONSE_BYTES: usize = 100;

/// A function of the chain.
pub(crate) struct ChainHop {
    pub(crate) node: LabNode,
    pub(crate) provision: Provision,
    /// Identity for calls to the next hop, and the next hop.
    pub(crate) next: Option<(CallIdentity, CalleeAddress)>,
}

/// Returns a call for a chain of `length` functions.
pub(crate) fn chain_call(transport: RemoteTransport, length: usize) -> SizedCall {
    SizedCall {
        path: format!("/{}/{length}", transport as usize),
        body: Bytes::new(),
        response: RESPONSE_BYTES,
    }
}

/// Starts a hop on a separate thread until the process exits. Returns the thread id.
pub(crate) fn start_hop(hop: ChainHop) -> Result<u32, BenchError> {
    all_transports::spawn_in_node(&hop.node.clone(), "relay", async move |ready| {
        let next = hop.next.map(|(identity, callee)| {
            RemoteCaller::new(identity).map(|caller| Rc::new((caller, callee)))
        });
        let next = next.transpose()?;
        let again = next.clone();
        let http = move |request: Request<Incoming>| {
            handle_call(request.uri().path().to_owned(), next.clone())
        };
        let quic = move |call: ServedCall| {
            handle_call(call.request.uri().path().to_owned(), again.clone())
        };
        all_transports::serve_all(hop.provision, http, quic, ready).await
    })
}

async fn handle_call(
    path: String,
    next: Option<Rc<(RemoteCaller, CalleeAddress)>>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(vec![b'x'; RESPONSE_BYTES]));
    let order = parse_path(&path);
    let done = match (order, next) {
        // The last hop that this call is for, whether or not the chain goes on.
        (Some((_, 1)), _) => true,
        (Some((transport, left)), Some(next)) => call_next(transport, left - 1, &next).await,
        _ => false,
    };
    if !done {
        *response.status_mut() = StatusCode::BAD_GATEWAY;
    }
    response
}

/// Parses the transport and the number of remaining functions, this one included.
fn parse_path(path: &str) -> Option<(RemoteTransport, usize)> {
    let (transport, left) = path.strip_prefix('/')?.split_once('/')?;
    let (transport, left) = (transport.parse::<usize>().ok()?, left.parse().ok()?);
    Some((*RemoteTransport::ALL.get(transport)?, left)).filter(|(_, left)| *left > 0)
}

async fn call_next(
    transport: RemoteTransport,
    left: usize,
    next: &(RemoteCaller, CalleeAddress),
) -> bool {
    let (caller, callee) = next;
    let Ok(mut connection) = caller.open_connection(transport, callee).await else {
        return false;
    };
    let done = connection
        .make_call(&chain_call(transport, left))
        .await
        .is_ok();
    tokio::task::spawn_local(async move { drop(connection.close_gracefully().await) }); // the answer does not wait for it
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed_as_written() {
        for transport in RemoteTransport::ALL {
            assert_eq!(
                parse_path(&chain_call(transport, 6).path),
                Some((transport, 6))
            );
        }
        assert_eq!(
            [
                parse_path("/1/0"),
                parse_path("/99/1"),
                parse_path("/"),
                parse_path("")
            ],
            [None; 4]
        );
    }
}
