//! A chain of functions on machines in a row: each calls the next one, over a new connection,
//! before it answers.

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

/// Bytes of every answer.
const ANSWER_BYTES: usize = 100;

/// A function of the chain.
pub(crate) struct ChainHop {
    pub(crate) node: LabNode,
    pub(crate) provision: Provision,
    /// As whom it calls the next one, and that one.
    pub(crate) next: Option<(CallIdentity, CalleeAddress)>,
}

/// Call that a chain of `length` functions answers.
pub(crate) fn chain_call(way: RemoteTransport, length: usize) -> SizedCall {
    SizedCall {
        path: format!("/{}/{length}", way as usize),
        body: Bytes::new(),
        answer: ANSWER_BYTES,
    }
}

/// Starts a hop on a thread of its own, which goes on as long as the process. Returns the thread's
/// number.
pub(crate) fn start_hop(hop: ChainHop) -> Result<u32, BenchError> {
    all_transports::spawn_in_node(&hop.node.clone(), "relay", async move |ready| {
        let next = hop.next.map(|(identity, callee)| {
            RemoteCaller::new(identity).map(|caller| Rc::new((caller, callee)))
        });
        let next = next.transpose()?;
        let again = next.clone();
        let http = move |request: Request<Incoming>| {
            answer_call(request.uri().path().to_owned(), next.clone())
        };
        let quic = move |call: ServedCall| {
            answer_call(call.request.uri().path().to_owned(), again.clone())
        };
        all_transports::serve_all(hop.provision, http, quic, ready).await
    })
}

async fn answer_call(
    path: String,
    next: Option<Rc<(RemoteCaller, CalleeAddress)>>,
) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(vec![b'x'; ANSWER_BYTES]));
    let order = parse_path(&path);
    let done = match (order, next) {
        // The last hop that this call is for, whether or not the chain goes on.
        (Some((_, 1)), _) => true,
        (Some((way, left)), Some(next)) => call_next(way, left - 1, &next).await,
        _ => false,
    };
    if !done {
        *answer.status_mut() = StatusCode::BAD_GATEWAY;
    }
    answer
}

/// The way, and how many functions there still are, this one included.
fn parse_path(path: &str) -> Option<(RemoteTransport, usize)> {
    let (way, left) = path.strip_prefix('/')?.split_once('/')?;
    let (way, left) = (way.parse::<usize>().ok()?, left.parse().ok()?);
    Some((*RemoteTransport::ALL.get(way)?, left)).filter(|(_, left)| *left > 0)
}

async fn call_next(
    way: RemoteTransport,
    left: usize,
    next: &(RemoteCaller, CalleeAddress),
) -> bool {
    let (caller, callee) = next;
    let Ok(mut connection) = caller.open_connection(way, callee).await else {
        return false;
    };
    let done = connection.make_call(&chain_call(way, left)).await.is_ok();
    tokio::task::spawn_local(async move { drop(connection.close_gracefully().await) }); // the answer does not wait for it
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_written() {
        for way in RemoteTransport::ALL {
            assert_eq!(parse_path(&chain_call(way, 6).path), Some((way, 6)));
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
