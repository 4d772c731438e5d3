//! The task that keeps a line.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Message;

use super::backoff::Backoff;
use super::dial::{Reached, dial};
use super::duplex_socket::{Duplex, Event};
use super::resumable_relay::Spoken;
use super::{Call, CallError, Heard, Here, Meeting, Order, Over, Settings};
use crate::message::{self, Granted, Parcel, Said, SessionText, Told, Welcome, Word};
use crate::websocket::{self, Web};

/// The rendezvous asks whether one is there three times as often; when nothing comes for so long, the line is dead.
const SILENCE: Duration = Duration::from_secs(75);
/// A line that was there for so long was a good one.
const GOOD: Duration = Duration::from_secs(10);
/// The rendezvous' answer to a call may take so much longer than the call waits.
const GRACE: Duration = Duration::from_secs(10);
/// More no peer has to say about a session, by [`Spoken::cost`].
const MOST_OF_A_SESSION: usize = 1 << 20;

/// Keeps a line until it is over, or nobody has a handle.
pub(super) async fn keep(
    settings: Arc<Settings>,
    orders: mpsc::UnboundedReceiver<Order>,
    own: mpsc::WeakUnboundedSender<Order>,
    tell: mpsc::Sender<Heard>,
    here: watch::Sender<Option<Arc<Here>>>,
) {
    let (calls, sessions, unsaid) = (HashMap::new(), HashMap::new(), VecDeque::new());
    let mut keeper = Keeper { settings, orders, own, tell, here, calls, sessions, unsaid, last: 0 };
    let end = keeper.run().await;
    keeper.bury(end).await;
}

struct Keeper {
    settings: Arc<Settings>,
    orders: mpsc::UnboundedReceiver<Order>,
    /// For meetings; does not keep the line.
    own: mpsc::WeakUnboundedSender<Order>,
    tell: mpsc::Sender<Heard>,
    here: watch::Sender<Option<Arc<Here>>>,
    calls: HashMap<u32, Call>,
    sessions: HashMap<SessionText, Ear>,
    /// What was said while there was no line.
    unsaid: VecDeque<Order>,
    last: u32,
}

/// Where what is said of a session goes, and how much has.
struct Ear {
    words: mpsc::UnboundedSender<Spoken>,
    heard: usize,
}

/// Why a line ended.
enum End {
    /// To be opened anew.
    Broken(String),
    Over(Over),
    /// Nobody has a handle.
    Unwanted,
}

impl Keeper {
    /// Opens lines until it is over; `None`: nobody wants one.
    async fn run(&mut self) -> Option<Over> {
        let mut backoff = Backoff::default();
        loop {
            let begun = Instant::now();
            let why = match self.line().await {
                End::Broken(why) => why,
                End::Over(over) => return Some(over),
                End::Unwanted => return None,
            };
            self.here.send_replace(None);
            if begun.elapsed() >= GOOD {
                backoff.reset();
            }
            let pause = tokio::time::sleep(backoff.pause(fastrand::f64()));
            if self.tell.send(Heard::Away { why }).await.is_err() || self.meanwhile(pause).await.is_none() {
                return None;
            }
        }
    }

    /// While there is no line, orders are taken all the same, and calls come to their end. `None`: nobody has a handle.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            let late = self.calls.values().map(|call| call.until + GRACE).min();
            let late = late.unwrap_or_else(|| Instant::now() + SILENCE);
            tokio::select! {
                done = &mut work => return Some(done),
                order = self.orders.recv() => match order? {
                    Order::Call(call) => drop(self.note(call)),
                    unsaid => self.unsaid.push_back(unsaid),
                },
                () = tokio::time::sleep_until(late.into()) => self.give_up_late_calls(),
            }
        }
    }

    async fn line(&mut self) -> End {
        let settings = self.settings.clone();
        let (mut web, rendezvous) = match self.meanwhile(open(&settings)).await {
            None => return End::Unwanted,
            Some(Ok(opened)) => opened,
            Some(Err(end)) => return end,
        };
        let welcome = match self.meanwhile(welcome(&mut web)).await {
            None => return End::Unwanted,
            Some(Ok(welcome)) => welcome,
            Some(Err(end)) => return end,
        };
        self.here.send_replace(Some(Arc::new(Here { welcome: welcome.clone(), rendezvous })));
        if self.tell.send(Heard::Here(welcome)).await.is_err() {
            return End::Unwanted;
        }
        let mut web = Duplex::new(web);
        self.catch_up(&mut web);
        self.talk(&mut web).await
    }

    async fn talk(&mut self, web: &mut Duplex) -> End {
        let mut heard = Instant::now();
        loop {
            let since = web.since();
            let silent = since.map_or(heard, |since| since.min(heard)) + SILENCE;
            let done = tokio::select! {
                order = next(&mut self.unsaid, &mut self.orders), if since.is_none() => match order {
                    Some(order) => {
                        self.obey(order, web);
                        Ok(())
                    }
                    None => {
                        let _ = tokio::time::timeout(GRACE, web.close()).await; // it is over either way
                        return End::Unwanted;
                    }
                },
                event = web.next() => match event {
                    Ok(Event::Sent) => Ok(()),
                    Ok(Event::Heard(message)) => {
                        heard = Instant::now();
                        self.hear(message).await
                    }
                    Err(error) => Err(End::Broken(error.to_string())),
                },
                () = tokio::time::sleep_until(silent.into()) => Err(End::Broken(match since {
                    Some(_) => "the rendezvous does not read".into(),
                    None => "the rendezvous is silent".into(),
                })),
            };
            self.give_up_late_calls();
            if let Err(end) = done {
                return end;
            }
        }
    }

    fn obey(&mut self, order: Order, web: &mut Duplex) {
        match order {
            Order::Say(said) => {
                if let Said::HangUp { session } = &said {
                    self.sessions.remove(session);
                }
                web.send(text(&said));
            }
            Order::Call(call) => {
                let said = self.note(call);
                web.send(text(&said));
            }
            Order::Carry(parcel) => web.send(Message::Binary(parcel.write())),
        }
    }

    /// A call begins to wait. What is to be said.
    fn note(&mut self, call: Call) -> Said {
        self.last = self.last.wrapping_add(1);
        let said = call.said(self.last);
        self.calls.insert(self.last, call);
        said
    }

    /// Calls that wait are made again; what was not said is next. A call may have been granted while the last one broke; then there are two sessions, and the
    /// peer's older one comes to its end unused.
    fn catch_up(&mut self, web: &mut Duplex) {
        self.give_up_late_calls();
        self.calls.iter().for_each(|(number, call)| web.send(text(&call.said(*number))));
        self.sessions.retain(|_, ear| !ear.words.is_closed());
        for session in self.sessions.keys().copied() {
            // It says nothing new to the peer; a rendezvous that has started anew says that there is no such session.
            web.send(text(&Said::Tell { session, word: Word::Has { pieces: 0 } }));
        }
    }

    fn give_up_late_calls(&mut self) {
        let now = Instant::now();
        let late = |call: &Call| call.until + GRACE <= now || call.answer.is_closed();
        for (_, call) in self.calls.extract_if(|_, call| late(call)) {
            let _ = call.answer.send(Err(CallError::Away)); // the caller may have gone
        }
    }

    async fn hear(&mut self, message: Option<Message>) -> Result<(), End> {
        let broken = |why: &str| Err(End::Broken(why.to_owned()));
        match message {
            Some(Message::Text(text)) => match serde_json::from_str(&text) {
                Ok(told) => self.told(told).await,
                Err(_) => Ok(()), // a newer rendezvous may know more words
            },
            Some(Message::Binary(frame)) => {
                if let Some(parcel) = Parcel::read(&message::alone(frame)) {
                    self.spoken(parcel.session, Spoken::Parcel(parcel));
                }
                Ok(())
            }
            Some(Message::Close(_)) | None => broken("the rendezvous closed the line"),
            Some(_) => Ok(()),
        }
    }

    async fn told(&mut self, told: Told) -> Result<(), End> {
        match told {
            Told::Granted(granted) => self.granted(granted).await,
            Told::Refused { call, why } => {
                if let Some(call) = self.calls.remove(&call) {
                    let _ = call.answer.send(Err(CallError::Refused(why))); // the caller may have gone
                }
                Ok(())
            }
            Told::Tell { session, word } => {
                self.spoken(session, Spoken::Word(word));
                Ok(())
            }
            Told::HungUp { session, .. } => {
                self.sessions.remove(&session);
                Ok(())
            }
            Told::Report { from, report } => self.pass(Heard::Report { from, report }).await,
            Told::Undelivered { to } => self.pass(Heard::Undelivered { to }).await,
            Told::Bye { why } if why.is_final() => Err(End::Over(Over::Said(why))),
            Told::Bye { why } => Err(End::Broken(why.to_string())),
            Told::Welcome(_) => Ok(()),
        }
    }

    async fn granted(&mut self, granted: Granted) -> Result<(), End> {
        let Some(orders) = self.own.upgrade() else { return Err(End::Unwanted) };
        let (words, hearing) = mpsc::unbounded_channel();
        let (_, until) = granted.grant(Instant::now());
        self.sessions.insert(granted.session, Ear { words, heard: 0 });
        let number = granted.call;
        let meeting = Meeting { granted, until, hello: None, words: hearing, orders };
        match number {
            Some(number) => {
                if let Some(call) = self.calls.remove(&number) {
                    let _ = call.answer.send(Ok(meeting)); // nobody waits: dropped, it hangs up
                }
                Ok(())
            }
            None => self.pass(Heard::Called(meeting)).await,
        }
    }

    fn spoken(&mut self, session: SessionText, spoken: Spoken) {
        if let Some(ear) = self.sessions.get_mut(&session) {
            ear.heard += spoken.cost();
            if ear.words.send(spoken).is_err() || ear.heard >= MOST_OF_A_SESSION {
                self.sessions.remove(&session);
            }
        }
    }

    async fn pass(&self, heard: Heard) -> Result<(), End> {
        self.tell.send(heard).await.map_err(|_| End::Unwanted)
    }

    /// Everybody who waits is told.
    async fn bury(mut self, over: Option<Over>) {
        self.here.send_replace(None);
        let error = over.clone().map_or(CallError::Closed, CallError::Over);
        self.orders.close();
        let waiting = self.calls.drain().map(|(_, call)| call.answer).collect::<Vec<_>>();
        let mut answers = waiting;
        while let Ok(order) = self.orders.try_recv() {
            if let Order::Call(call) = order {
                answers.push(call.answer);
            }
        }
        for answer in answers {
            let _ = answer.send(Err(error.clone())); // the caller may have gone
        }
        if let Some(over) = over {
            let _ = self.tell.send(Heard::Over(over)).await; // nobody may listen
        }
    }
}

/// What waited for a line comes first. It is taken when the line has room for it: one that breaks loses no more than it was given.
async fn next(unsaid: &mut VecDeque<Order>, orders: &mut mpsc::UnboundedReceiver<Order>) -> Option<Order> {
    match unsaid.pop_front() {
        Some(order) => Some(order),
        None => orders.recv().await,
    }
}

impl Call {
    fn said(&self, call: u32) -> Said {
        let left = self.until.saturating_duration_since(Instant::now()).as_millis();
        let within = u32::try_from(left).unwrap_or(u32::MAX);
        let (peer, about, hello) = (self.peer.clone(), self.about.clone(), self.hello.clone());
        Said::Call { call, peer, about, within, hello }
    }
}

async fn open(settings: &Settings) -> Result<(Web, Reached), End> {
    let dialled = dial(settings, websocket::LINE, &settings.ticket.0, websocket::for_own_line()).await;
    dialled.map_err(|error| {
        let text = error.to_string();
        if error.is_final() { End::Over(Over::Ticket(text)) } else { End::Broken(text) }
    })
}

async fn welcome(web: &mut Web) -> Result<Welcome, End> {
    let first = tokio::time::timeout(GRACE, web.next()).await;
    let Ok(Some(Ok(Message::Text(text)))) = first else {
        return Err(End::Broken("the rendezvous says nothing".into()));
    };
    match serde_json::from_str(&text) {
        Ok(Told::Welcome(welcome)) => Ok(welcome),
        Ok(Told::Bye { why }) if why.is_final() => Err(End::Over(Over::Said(why))),
        _ => Err(End::Broken("the rendezvous began with another word than welcome".into())),
    }
}

fn text(said: &Said) -> Message {
    Message::text(serde_json::to_string(said).expect("messages have text keys only"))
}
