//! A chain of functions on machines in a row: each calls the next one, over a new connection, before it answers.

use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use nearpath_testkit::lab::LabNode;
use nearpath_wire::quic::ServedCall;
use nearpath_wire::zero_rtt::Provision;

use super::caller::{Ask, Callee, Caller};
use super::site::Identity;
use super::{Error, Way, everywhere};

/// Bytes of every answer.
const ANSWER: usize = 100;

/// A function of the chain.
pub(crate) struct Hop {
    pub(crate) node: LabNode,
    pub(crate) provision: Provision,
    /// As whom it calls the next one, and that one.
    pub(crate) next: Option<(Identity, Callee)>,
}

/// What makes a chain of so many functions answer.
pub(crate) fn ask(way: Way, length: usize) -> Ask {
    Ask {
        path: format!("/{}/{length}", way as usize),
        body: Bytes::new(),
        answer: ANSWER,
    }
}

/// Starts a hop on a thread of its own, which goes on as long as the process. Returns the thread's number.
pub(crate) fn start(hop: Hop) -> Result<u32, Error> {
    everywhere::on_a_thread(&hop.node.clone(), "relay", async move |ready| {
        let next = hop.next.map(|(identity, callee)| {
            Caller::new(identity).map(|caller| Rc::new((caller, callee)))
        });
        let next = next.transpose()?;
        let again = next.clone();
        let http =
            move |request: Request<Incoming>| answer(request.uri().path().to_owned(), next.clone());
        let quic =
            move |call: ServedCall| answer(call.request.uri().path().to_owned(), again.clone());
        everywhere::serve(hop.provision, http, quic, ready).await
    })
}

async fn answer(path: String, next: Option<Rc<(Caller, Callee)>>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(vec![b'x'; ANSWER]));
    let order = read(&path);
    let done = match (order, next) {
        (Some((_, 1)), _) => true,
        (Some((way, left)), Some(next)) => on(way, left - 1, &next).await,
        _ => false,
    };
    if !done {
        *answer.status_mut() = StatusCode::BAD_GATEWAY;
    }
    answer
}

/// The way, and how many functions there still are, this one included.
fn read(path: &str) -> Option<(Way, usize)> {
    let (way, left) = path.strip_prefix('/')?.split_once('/')?;
    let (way, left) = (way.parse::<usize>().ok()?, left.parse().ok()?);
    Some((*Way::ALL.get(way)?, left)).filter(|(_, left)| *left > 0)
}

async fn on(way: Way, left: usize, next: &(Caller, Callee)) -> bool {
    let (caller, callee) = next;
    let Ok(mut connection) = caller.open(way, callee).await else {
        return false;
    };
    let done = connection.ask(&ask(way, left)).await.is_ok();
    tokio::task::spawn_local(async move { drop(connection.end().await) }); // the answer does not wait for it
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_written() {
        for way in Way::ALL {
            assert_eq!(read(&ask(way, 6).path), Some((way, 6)));
        }
        assert_eq!(
            [read("/1/0"), read("/99/1"), read("/"), read("")],
            [None; 4]
        );
    }
}
