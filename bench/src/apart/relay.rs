//! A chain of functions on machines in a row: each calls the next one, over a new connection, before it answers.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::mpsc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use nearpath_testkit::lab::Node;
use nearpath_wire::early::Provision;
use nearpath_wire::mutual::Entrance;
use nearpath_wire::quic::Worker;
use tokio::task::LocalSet;

use super::caller::{Ask, Callee, Caller};
use super::port::{self, Door};
use super::site::Identity;
use super::{Error, Way, tls};

const WORKER: u16 = 9001;
const SERVER: u16 = 9002;
/// Bytes of every answer.
const ANSWER: usize = 100;

/// A function of the chain.
pub(crate) struct Hop {
    pub(crate) node: Node,
    pub(crate) provision: Provision,
    /// As whom it calls the next one, and that one.
    pub(crate) next: Option<(Identity, Callee)>,
}

/// Where a hop is found at this address.
pub(crate) fn callee(addr: Ipv4Addr, provision: &Provision) -> Callee {
    let at = |port| SocketAddr::from((addr, port));
    let name = provision.credentials.name.clone();
    Callee { worker: at(WORKER), server: at(SERVER), name }
}

/// What makes a chain of so many functions answer.
pub(crate) fn ask(way: Way, length: usize) -> Ask {
    Ask { path: format!("/{}/{length}", way as usize), body: Bytes::new(), answer: ANSWER }
}

/// Starts a hop on a thread of its own, which goes on as long as the process. Returns the thread's number.
pub(crate) fn start(hop: Hop) -> Result<u32, Error> {
    let (tell, told) = mpsc::channel();
    let node = hop.node.clone();
    node.enter(move || std::thread::Builder::new().name("relay".to_owned()).spawn(move || thread(hop, &tell)))?;
    told.recv().map_err(|_| "a relay ended before it was ready")?.map_err(Error::from)
}

fn thread(hop: Hop, tell: &mpsc::Sender<Result<u32, String>>) {
    let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let run = || -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, serve(hop, || drop(tell.send(Ok(id)))))
    };
    if let Err(error) = run() {
        let _ = tell.send(Err(error.to_string()));
    }
}

async fn serve(hop: Hop, ready: impl FnOnce()) -> Result<(), Error> {
    let next = hop.next.map(|(identity, callee)| Caller::new(identity).map(|caller| Rc::new((caller, callee))));
    let next = next.transpose()?;
    let all = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let handler = {
        let next = next.clone();
        move |request: Asked| answer(request.uri().path().to_owned(), next.clone())
    };
    let (entrance, nameless) = (Rc::new(Entrance::new(true)), Door::Nameless(tls::callee(&hop.provision)?.into()));
    entrance.provision(&hop.provision)?;
    let worker = port::serve(port::listen(all(WORKER))?, Door::Worker(entrance), handler.clone());
    let server = port::serve(port::listen(all(SERVER))?, nameless, handler);
    let socket = UdpSocket::bind(all(WORKER))?;
    socket.set_nonblocking(true)?;
    let _quic =
        Worker::start(socket, hop.provision, move |call| answer(call.request.uri().path().to_owned(), next.clone()))?;
    ready();
    tokio::join!(worker, server);
    Ok(())
}

type Asked = http::Request<hyper::body::Incoming>;

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
    let Ok(mut connection) = caller.open(way, callee).await else { return false };
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
        assert_eq!([read("/1/0"), read("/99/1"), read("/"), read("")], [None; 4]);
    }
}
