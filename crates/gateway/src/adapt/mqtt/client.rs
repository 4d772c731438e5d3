//! One connection: reads packets, lets [`Session`] decide, calls functions, and hands out results. The task outlives the
//! connection for as long as its calls take: a message that was taken is worked on also when its client has gone.

use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::BytesMut;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nearpath_types::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::calls::{Called, call_all};
use super::codec;
use super::hub::Mailbox;
use super::line::{Heard, Line, Mute};
use super::packet::{Connect, End, Granted, In, Out, Publish, Version, Welcome};
use super::session::{Session, Step};
use super::{House, Place};
use crate::adapt::invoke;
use crate::call::Peer;

/// Serves a connection to its end.
pub(super) async fn serve(house: Rc<House>, stream: TcpStream, addr: IpAddr, room: bool, place: Place) {
    let peer = invoke::peer(addr, "mqtt");
    let mut line = Line { stream, read: BytesMut::new(), version: None, house: house.clone() };
    let opened = timeout(house.limits.patience, open(&mut line, room)).await;
    let Ok(Ok((connect, session))) = opened else { return };
    house.counts.clients.more();
    let mailbox = house.hub.enter(connect.id.clone());
    let mut client = Client { house, peer, session, mailbox, calls: FuturesUnordered::new(), line };
    let end = client.live().await;
    client.leave(end, connect.will).await;
    drop(place);
}

/// Hears the first packet and answers it.
async fn open(line: &mut Line, room: bool) -> Result<(Connect, Session), ()> {
    let house = line.house.clone();
    let refused = match line.next().await {
        Ok(In::Connect(mut connect)) => {
            line.version = Some(connect.version);
            let fresh = format!("nearpath-{}", Uuid::new_v4().simple());
            match judge(&house, &connect, room, &fresh) {
                Ok((session, welcome)) => {
                    if connect.id.is_empty() {
                        connect.id = fresh.into();
                    }
                    line.say(&Out::Welcome(welcome)).await.map_err(drop)?;
                    return Ok((*connect, session));
                }
                Err(end) => end,
            }
        }
        Ok(_) => End::Protocol,
        Err(Heard::Gone) => return Err(()),
        Err(Heard::Wrong(end)) => end,
    };
    house.counts.ended(refused.name());
    line.version.get_or_insert(Version::V311);
    let _ = line.say(&Out::Reject(refused)).await; // it is not let in, whether it hears it or not
    Err(())
}

fn judge(house: &House, connect: &Connect, room: bool, fresh: &str) -> Result<(Session, Welcome), End> {
    if house.drain.is_draining() {
        return Err(End::Draining);
    }
    if !room {
        return Err(End::Busy);
    }
    let (user, password) = (connect.user.as_deref().unwrap_or(""), connect.password.as_deref().unwrap_or(b""));
    let known = house.doorkeeper.as_ref().is_none_or(|keeper| keeper(user, password));
    Session::open(connect, &house.limits, known, fresh)
}

/// How a connection ended.
enum Over {
    /// The client said so.
    Orderly,
    /// The client is gone, or said that its last will is to be published.
    Lost,
    /// The gateway ended it.
    Ended(End),
}

struct Client {
    house: Rc<House>,
    peer: Rc<Peer>,
    session: Session,
    mailbox: Rc<Mailbox>,
    calls: FuturesUnordered<LocalBoxFuture<'static, Called>>,
    line: Line,
}

impl Client {
    async fn live(&mut self) -> Over {
        let drain = self.house.drain.clone();
        let mut heard = Instant::now();
        loop {
            let done = match self.hand_out().await {
                Ok(()) => self.event(&drain, heard).await,
                Err(over) => return over,
            };
            let step = match done {
                Event::Heard(packet) => {
                    heard = Instant::now();
                    let rules = self.house.clone();
                    self.session.hear(packet, |name| rules.rules.borrow().knows(name))
                }
                Event::Called(called) => {
                    heard = heard.max(Instant::now() - self.session.patience() / 2); // it may have been kept from speaking
                    self.answered(called)
                }
                Event::News => Step::Nothing,
                Event::Over(over) => return over,
            };
            if let Err(over) = self.act(step).await {
                return over;
            }
        }
    }

    /// Waits for whatever comes first. With as many calls as it may have, the client is not listened to.
    async fn event(&mut self, drain: &nearpath_daemon::drain::Watch, heard: Instant) -> Event {
        let listening = self.calls.len() < self.house.limits.in_flight;
        let (line, calls, mailbox) = (&mut self.line, &mut self.calls, &self.mailbox);
        let silent = heard + self.session.patience();
        tokio::select! {
            biased;
            () = drain.signaled() => Event::Over(Over::Ended(End::Draining)),
            Some(called) = calls.next(), if !calls.is_empty() => Event::Called(called),
            () = mailbox.news() => match mailbox.is_taken_over() {
                true => Event::Over(Over::Ended(End::TakenOver)),
                false => Event::News,
            },
            packet = line.next(), if listening => match packet {
                Ok(packet) => Event::Heard(packet),
                Err(Heard::Gone) => Event::Over(Over::Lost),
                Err(Heard::Wrong(end)) => Event::Over(Over::Ended(end)),
            },
            () = async { if listening { sleep_until(silent).await } else { pending().await } } => {
                Event::Over(Over::Ended(End::KeepAlive))
            }
        }
    }

    async fn act(&mut self, step: Step) -> Result<(), Over> {
        match step {
            Step::Nothing => Ok(()),
            Step::Say(out) => self.say(&out).await,
            Step::Call(publish) => {
                self.call(publish);
                Ok(())
            }
            Step::Subscribe(pid, judged) => {
                for (filter, granted) in &judged {
                    if let Some(qos) = [Granted::Qos0, Granted::Qos1].iter().position(|level| level == granted) {
                        self.house.hub.subscribe(&self.mailbox, filter, qos as u8);
                    }
                }
                let granted = judged.into_iter().map(|(_, granted)| granted).collect();
                self.say(&Out::Suback(pid, granted)).await
            }
            Step::Unsubscribe(pid, filters) => {
                filters.iter().for_each(|filter| self.house.hub.unsubscribe(&self.mailbox, filter));
                let had = filters.iter().map(|filter| self.session.forget(filter)).collect();
                self.say(&Out::Unsuback(pid, had)).await
            }
            Step::Gone { will } => Err(if will { Over::Lost } else { Over::Orderly }),
            Step::End(end) => Err(Over::Ended(end)),
        }
    }

    fn call(&mut self, publish: Publish) {
        self.house.counts.messages.more();
        let aims = self.house.rules.borrow_mut().aims(&publish.topic);
        if aims.is_empty() {
            self.house.counts.unmatched.more();
            self.house.lane.totals.refused.add(Reason::NoFunction);
        }
        let (house, peer, version) = (self.house.clone(), self.peer.clone(), self.session.version());
        self.calls.push(Box::pin(call_all(house, peer, version, publish, aims)));
    }

    /// Hands results on and says how the message was taken.
    fn answered(&mut self, called: Called) -> Step {
        called.results.iter().for_each(|result| self.house.hub.publish(result));
        self.session.called(called.pid, called.ack)
    }

    /// Sends what waits for the client, as far as it takes it.
    async fn hand_out(&mut self) -> Result<(), Over> {
        loop {
            let session = &self.session;
            let Some(mut next) = self.mailbox.take(|next| next.qos == 0 || session.has_window()) else { return Ok(()) };
            next.pid = (next.qos > 0).then(|| self.session.number());
            let bytes = codec::encode(&Out::Publish(next.clone()), self.session.version());
            match bytes.filter(|bytes| bytes.len() <= self.session.max_packet()) {
                Some(bytes) => {
                    self.house.counts.sent.more();
                    self.line.write(&bytes).await.map_err(Over::from)?;
                }
                None => {
                    self.house.counts.lost.more();
                    next.pid.into_iter().for_each(|pid| drop(self.session.hear(In::Puback(pid), |_| true)));
                }
            }
        }
    }

    async fn say(&mut self, out: &Out) -> Result<(), Over> {
        self.line.say(out).await.map_err(Over::from)
    }

    /// The end: the client is told, its last will is published unless it took leave, and what it began goes on.
    async fn leave(mut self, over: Over, will: Option<Publish>) {
        self.house.counts.clients.less();
        self.house.hub.leave(&self.mailbox, self.session.filters());
        let told = match over {
            Over::Ended(end) => {
                self.house.counts.ended(end.name());
                Some(end)
            }
            Over::Orderly | Over::Lost => None,
        };
        if let Some(will) = will.filter(|_| !matches!(over, Over::Orderly) && told != Some(End::Draining)) {
            self.call(Publish { qos: 0, pid: None, ..will });
        }
        if told == Some(End::Draining) {
            self.finish(true).await;
        }
        if let Some(end) = told {
            let _ = self.line.say(&Out::Disconnect(end)).await; // it is over either way
        }
        let _ = self.line.stream.shutdown().await;
        self.finish(false).await;
    }

    /// Waits for the calls that are left. `speak`: the client is told how they ended.
    async fn finish(&mut self, mut speak: bool) {
        while let Some(called) = self.calls.next().await {
            let step = self.answered(called);
            if speak {
                speak = self.act(step).await.is_ok() && self.hand_out().await.is_ok();
            }
        }
    }
}

enum Event {
    Heard(In),
    Called(Called),
    News,
    Over(Over),
}

impl From<Mute> for Over {
    fn from(mute: Mute) -> Self {
        match mute {
            Mute::Gone => Self::Lost,
            Mute::Stuck => Self::Ended(End::Stuck),
        }
    }
}
