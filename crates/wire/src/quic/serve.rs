//! The worker's side: takes connections, and hands each stream to a handler.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::{Notify, watch};

use super::body::{BodyError, Incoming};
use super::code;
use super::dial::certificates;
use super::frame::{Answered, Asked, UNKNOWN};
use super::heads;
use super::room::Room;
use super::upload::{self, Outgoing};
use crate::BoxError;
use crate::identity::{Peer, Refusal, Trust};

/// A call that came.
#[derive(Debug)]
pub struct Call {
    /// As HTTP has it.
    pub request: Request<Incoming<Asked>>,
    /// What was said beside HTTP's head.
    pub asked: Asked,
    /// Who calls.
    pub peer: Arc<Peer>,
    /// It came in a first flight, before the handshake was complete.
    pub early: bool,
}

/// Who may call, and what answers.
#[derive(Debug)]
pub struct Server<H> {
    trust: RefCell<Trust>,
    handler: H,
    /// Changes with the trust, and when the server stops.
    pub(super) changes: watch::Sender<Stage>,
    open: Cell<usize>,
    idle: Notify,
    pub(super) room: Room,
    refused: watch::Sender<Refused>,
}

/// Who was not let in: for whoever writes it down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refused {
    /// How many so far.
    pub count: u64,
    /// Who the last was, and why.
    pub last: String,
}

impl Refused {
    pub(crate) fn add(&mut self, from: SocketAddr, why: &dyn std::fmt::Display) {
        *self = Self { count: self.count + 1, last: format!("{from}: {why}") };
    }
}

/// What connections are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Whom to admit, by its number.
    Serving(u64),
    Stopping,
}

impl<H, F, B> Server<H>
where
    H: Fn(Call) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    /// Answers whom `trust` admits.
    pub fn new(trust: Trust, handler: H) -> Rc<Self> {
        let (trust, changes) = (RefCell::new(trust), watch::Sender::new(Stage::Serving(0)));
        let (room, refused) = (Room::default(), watch::Sender::default());
        Rc::new(Self { trust, handler, changes, open: Cell::new(0), idle: Notify::new(), room, refused })
    }

    /// Takes so many connections at a time from now on; callers beyond that are told, and go elsewhere. [`CONNECTIONS`](super::CONNECTIONS) at first.
    pub fn connections(&self, most: usize) {
        self.room.most.set(most);
    }

    /// Who was not let in; changes with each.
    pub fn refused(&self) -> watch::Receiver<Refused> {
        self.refused.subscribe()
    }

    /// Admits others from now on. Connections of those who are not admitted any more are closed.
    pub fn trust(&self, trust: Trust) {
        *self.trust.borrow_mut() = trust;
        self.changes.send_modify(|stage| {
            if let Stage::Serving(number) = stage {
                *number += 1;
            }
        });
    }

    /// Takes no more calls; done when those that are open have ended.
    pub async fn stop(&self) {
        self.changes.send_replace(Stage::Stopping);
        loop {
            let idle = self.idle.notified();
            if self.open.get() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// A handshake that came to nothing, or a peer that is not wanted.
    pub(super) fn note(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        self.refused.send_modify(|refused| refused.add(from, why));
    }

    /// Looks at what the peer showed: a session may be older than what the controller took back.
    pub(super) fn admit(&self, connection: &Connection) -> Result<Arc<Peer>, Refusal> {
        self.trust.borrow().admit(&certificates(connection), SystemTime::now()).map(Arc::new)
    }

    /// One call, from its stream's opening to its end.
    pub(super) async fn call(self: Rc<Self>, send: SendStream, receive: RecvStream, peer: Arc<Peer>, early: bool) {
        let (mut out, mut incoming) = (Outgoing::new(send), Incoming::<Asked>::new(receive));
        if *self.changes.borrow() == Stage::Stopping {
            return out.refuse(code::UNSEEN);
        }
        let _one = One::of(&self);
        let call = match begin(&mut incoming).await {
            Ok((request, asked)) => Call { request: request.map(|()| incoming), asked, peer, early },
            Err(_) => return out.refuse(code::FAULT),
        };
        let gone = out.stream().stopped();
        let answer = tokio::select! {
            answer = (self.handler)(call) => answer,
            _ = gone => return, // nobody waits: the handler's work is dropped
        };
        if give(&mut out, answer).await.is_ok() {
            let _ = out.stream().stopped().await; // the caller has all of it: only then may the connection end
        }
    }
}

/// One call that is under way.
struct One<'a, H>(&'a Server<H>);

impl<'a, H> One<'a, H> {
    fn of(server: &'a Server<H>) -> Self {
        server.open.set(server.open.get() + 1);
        Self(server)
    }
}

impl<H> Drop for One<'_, H> {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.idle.notify_waiters();
    }
}

async fn begin(incoming: &mut Incoming<Asked>) -> Result<(Request<()>, Asked), BodyError> {
    let (asked, head) = incoming.opening().await?;
    let mut request = heads::request(&head)?;
    *request.version_mut() = http::Version::HTTP_2; // the nearest that HTTP has: streams, trailers, no upgrade
    Ok((request, asked))
}

async fn give<B>(out: &mut Outgoing, answer: Response<B>) -> Result<(), upload::SendError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (head, body) = answer.into_parts();
    let total = upload::total(&body, &head.headers);
    let mut answered = Answered { platform: false, status: head.status.as_u16(), reason: 0, total };
    if let Some(said) = head.extensions.get::<Answered>() {
        (answered.platform, answered.reason) = (said.platform, said.reason);
    }
    let mut first = BytesMut::with_capacity(512);
    heads::write_answered(&answered, &head.headers, &mut first)?;
    out.send(first, body, total != UNKNOWN).await
}
