//! The thread that is the party.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use napi::Status;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use nearpath::{CallOptions, Error, FunctionServer, HandlerResponse, Request, Response, StreamingResponse};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn_local};

use crate::bodies::{Bodies, Key, Piece};
use crate::words::{AskOfJs, Message, Outcome, RequestOfJs, ResponseOfJs};

/// What tells JavaScript; it does not keep the process alive, `index.js` does while something is open.
pub(crate) type Tell = ThreadsafeFunction<Message, (), Message, Status, false, true>;

/// Number of the message that serving has ended.
const SERVED: f64 = -1.0;

/// What JavaScript wants.
#[derive(Debug)]
pub(crate) enum Order {
    Call {
        id: f64,
        name: String,
        payload: Vec<u8>,
        ask: AskOfJs,
        kind: Kind,
    },
    /// `pieces`: its body is written.
    Answer {
        id: f64,
        response: ResponseOfJs,
        pieces: bool,
    },
    /// A piece of a body; nothing when it is complete.
    Push {
        body: Key,
        piece: Option<Piece>,
    },
    /// The next part of a body is wanted.
    Pull {
        body: Key,
    },
    /// Nobody reads it any more.
    Leave {
        body: Key,
    },
    /// Nobody waits for it any more.
    GiveUp {
        id: f64,
    },
    Stop,
}

/// What a call is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Event,
    Topic,
    Later,
    /// `pieces`: its body is written. `stream`: its answer is read as it comes.
    Call {
        pieces: bool,
        stream: bool,
    },
}

/// The way to the thread. Dropping it ends the thread, after the calls that are open.
pub(crate) struct Desk(UnboundedSender<Order>);

impl Desk {
    pub(crate) fn start(tell: Tell, serves: bool, streams: bool) -> io::Result<Self> {
        let (sender, orders) = unbounded_channel();
        let work = move || {
            let (open, last, bodies) = (RefCell::default(), Cell::new(0.0), Bodies::default());
            let office = Office { tell: Arc::new(tell), open, last, bodies, made: RefCell::default(), streams };
            office.run(serves, orders);
        };
        thread::Builder::new().name("nearpath".into()).spawn(work)?;
        Ok(Self(sender))
    }

    pub(crate) fn order(&self, order: Order) -> bool {
        self.0.send(order).is_ok()
    }
}

/// What the thread knows.
struct Office {
    tell: Arc<Tell>,
    open: RefCell<HashMap<u64, Open>>,
    last: Cell<f64>,
    bodies: Bodies,
    /// What ends a call that was made.
    made: RefCell<HashMap<u64, AbortHandle>>,
    /// Handlers are called when a request begins.
    streams: bool,
}

/// A call whose handler runs in JavaScript.
struct Open {
    /// What the calls of its handler begin with.
    following: CallOptions,
    answer: oneshot::Sender<HandlerResponse>,
}

impl Office {
    fn run(self, serves: bool, orders: UnboundedReceiver<Order>) {
        let office = Rc::new(self);
        let clerk = Rc::clone(&office);
        let obey = async move {
            obey(clerk, orders).await;
        };
        if !serves {
            return drop(nearpath::run(obey));
        }
        let server = Rc::clone(&office);
        let handler = move |request: Request| {
            let office = Rc::clone(&server);
            async move { office.attend(request).await }
        };
        let server = FunctionServer::new(handler);
        let server = if office.streams { server.streaming() } else { server };
        let served = server.run_until(obey).map(|()| Outcome::Answer(Response::new("")));
        office.say(Message::outcome(SERVED, &served));
    }

    fn say(&self, message: Message) {
        self.tell.call(message, ThreadsafeFunctionCallMode::NonBlocking);
    }

    /// Has a call answered by JavaScript.
    async fn attend(self: Rc<Self>, mut request: Request) -> HandlerResponse {
        let id = self.last.replace(self.last.get() + 1.0) + 1.0;
        let (answer, answered) = oneshot::channel();
        self.open.borrow_mut().insert(key(id), Open { following: CallOptions::from_request(&request), answer });
        let guard = GivenUp { office: &self, id };
        if self.streams {
            self.bodies.came((true, key(id)), request.take_stream());
        }
        self.say(Message { request: Some(RequestOfJs::of(&request)), ..Message::about(id) });
        drop(request); // its slot is free
        let answered = answered.await;
        std::mem::forget(guard);
        answered.unwrap_or_else(|_| Response::new("the function is stopping\n").with_status(503).into())
    }

    fn answer(&self, id: f64, response: Response, pieces: bool) -> HandlerResponse {
        if !pieces {
            return response.into();
        }
        let body = self.bodies.goes((true, key(id)));
        StreamingResponse::new(body).with_status(response.status()).with_head(response.head().clone()).into()
    }

    fn following(&self, id: f64) -> Option<CallOptions> {
        self.open.borrow().get(&key(id)).map(|open| open.following.clone())
    }
}

/// Tells JavaScript when the caller no longer waits: the future is dropped then.
struct GivenUp<'a> {
    office: &'a Rc<Office>,
    id: f64,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.office.open.borrow_mut().remove(&key(self.id));
        self.office.bodies.leave((true, key(self.id)));
        self.office.say(Message { given_up: Some(true), ..Message::about(self.id) });
    }
}

/// Numbers are whole and below 2^53.
fn key(id: f64) -> u64 {
    id as u64
}

/// Until JavaScript wants no more. The calls that it has made end first when nobody serves.
async fn obey(office: Rc<Office>, mut orders: UnboundedReceiver<Order>) {
    let mut calls = tokio::task::JoinSet::new();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Stop => {
                // Calls that are open still call others and are answered.
                spawn_local(obey_to_the_end(office, orders));
                return;
            }
            order => carry_out(&office, order, &mut calls),
        }
        while calls.try_join_next().is_some() {}
    }
    while calls.join_next().await.is_some() {}
}

async fn obey_to_the_end(office: Rc<Office>, mut orders: UnboundedReceiver<Order>) {
    let mut calls = tokio::task::JoinSet::new();
    while let Some(order) = orders.recv().await {
        carry_out(&office, order, &mut calls);
    }
}

fn carry_out(office: &Rc<Office>, order: Order, calls: &mut tokio::task::JoinSet<()>) {
    match order {
        Order::Call { id, name, payload, ask, kind } => {
            let office = Rc::clone(office);
            let following = ask.parent.and_then(|parent| office.following(parent));
            let clerk = Rc::clone(&office);
            let ends = calls.spawn_local(async move {
                let outcome = call(&clerk, id, &name, payload, ask.read(following.as_ref()), kind).await;
                if outcome.is_err() || !matches!(kind, Kind::Call { stream: true, .. }) {
                    clerk.bodies.finish((false, key(id))); // else it may go on while the answer is read
                }
                clerk.made.borrow_mut().remove(&key(id));
                clerk.say(Message::outcome(id, &outcome));
            });
            office.made.borrow_mut().insert(key(id), ends);
        }
        Order::GiveUp { id } => {
            if let Some(ends) = office.made.borrow_mut().remove(&key(id)) {
                ends.abort();
            }
            let body = (false, key(id));
            office.bodies.finish(body);
            office.bodies.leave(body);
        }
        Order::Push { body, piece: Some(piece) } => {
            let office = Rc::clone(office);
            spawn_local(async move {
                let room = Some(office.bodies.write(body, piece).await);
                office.say(Message { room, ..Message::of_body(body) });
            });
        }
        Order::Push { body, piece: None } => office.bodies.finish(body),
        Order::Pull { body } => {
            let office = Rc::clone(office);
            spawn_local(async move {
                let part = office.bodies.next(body).await;
                office.say(Message::came(body, part));
            });
        }
        Order::Leave { body } => office.bodies.leave(body),
        Order::Answer { id, response, pieces } => {
            if let Some(open) = office.open.borrow_mut().remove(&key(id)) {
                let _ = open.answer.send(office.answer(id, response.read(), pieces));
            }
        }
        Order::Stop => {}
    }
}

async fn call(
    office: &Office,
    id: f64,
    name: &str,
    payload: Vec<u8>,
    ask: Result<CallOptions, Error>,
    kind: Kind,
) -> Result<Outcome, Error> {
    let (ask, body) = (ask?, (false, key(id)));
    let streaming = match kind {
        Kind::Event => {
            return nearpath::notify_with(name, payload, ask).await.map(|()| Outcome::Answer(Response::new("")));
        }
        Kind::Later => return nearpath::call_later(name, payload, ask).await.map(Outcome::Accepted),
        Kind::Topic => return nearpath::publish_with(name, payload, ask).await.map(Outcome::Published),
        Kind::Call { pieces: false, stream: false } => {
            return nearpath::call_with(name, payload, ask).await.map(Outcome::Answer);
        }
        Kind::Call { pieces: true, .. } => nearpath::call_stream_with(name, office.bodies.goes(body), ask).await?,
        Kind::Call { .. } => {
            let whole = futures_util::stream::iter([Ok::<_, Error>(payload)]);
            nearpath::call_stream_with(name, whole, ask).await?
        }
    };
    if !matches!(kind, Kind::Call { stream: true, .. }) {
        return streaming.collect_body().await.map(Outcome::Answer);
    }
    let (response, rest) = streaming.into_parts();
    office.bodies.came(body, rest);
    Ok(Outcome::Answer(response))
}
