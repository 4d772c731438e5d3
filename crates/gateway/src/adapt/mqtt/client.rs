//! One connection: reads packets, lets [`Session`] decide, calls functions, and hands out results. The task outlives the
//! connection for as long as its calls take: a message that was taken is worked on also when its client has gone.

use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use nearpath_types::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::codec;
use super::hub::Mailbox;
use super::packet::{Ack, Connect, End, Granted, In, Out, Publish, Version};
use super::session::{Session, Step};
use super::{House, Place};
use crate::adapt::invoke::{self, Answer, Ask};
use crate::adapt::rules::{Aim, result_topic};
use crate::call::Peer;

/// The topic of the message that called the function, as OpenFaaS's connectors name it.
const X_TOPIC: HeaderName = HeaderName::from_static("x-topic");
/// Largest first packet: nothing is known about its sender yet.
const FIRST_PACKET: usize = 64 << 10;
/// User properties that are passed on as headers.
const PASSED: [&str; 3] = ["traceparent", "tracestate", "x-call-id"];

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
            let fresh = format!("nearpath-{:016x}", house.lane.random());
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

fn judge(house: &House, connect: &Connect, room: bool, fresh: &str) -> Result<(Session, super::packet::Welcome), End> {
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

/// The functions of one message, answered.
struct Called {
    pid: Option<u16>,
    ack: Ack,
    results: Vec<Publish>,
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

/// Calls every function that a message is for, one after the other's begin, and sums up.
async fn call_all(house: Rc<House>, peer: Rc<Peer>, version: Version, publish: Publish, aims: Vec<Aim>) -> Called {
    let mut called = Called { pid: publish.pid, ack: Ack::Nobody, results: Vec::new() };
    let asks: Vec<_> = aims.into_iter().map(|aim| ask(aim, &publish, version)).collect();
    let mut calls: FuturesUnordered<_> = asks
        .into_iter()
        .map(|ask| async {
            let id = ask.function.id.clone();
            (id, invoke::invoke(&house.lane, &peer, ask, house.limits.packet).await)
        })
        .collect();
    while let Some((id, answer)) = calls.next().await {
        called.ack = worse(called.ack, judge_answer(&answer));
        let Some(payload) = answer.body.clone() else {
            house.counts.lost.more();
            continue;
        };
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(Arc::from);
        let status = (Arc::from("status"), Arc::from(answer.status.to_string()));
        let (qos, properties) = (publish.qos, vec![status]);
        let result = Publish { payload, qos, content_type, properties, ..Publish::default() };
        if (200..300).contains(&answer.status) {
            called.results.push(Publish { topic: result_topic(&id).into(), ..result.clone() });
        }
        if let Some(topic) = &publish.response_topic {
            let (topic, correlation) = (topic.clone(), publish.correlation.clone());
            called.results.push(Publish { topic, correlation, ..result });
        }
    }
    called
}

fn ask((function, path): Aim, publish: &Publish, version: Version) -> Ask {
    let mut headers = HeaderMap::new();
    let topic = HeaderValue::from_str(&publish.topic)
        .unwrap_or_else(|_| HeaderValue::from_str(&invoke::segment(&publish.topic)).expect("what is encoded is ASCII"));
    headers.insert(X_TOPIC, topic);
    let kind = publish.content_type.as_deref().and_then(|kind| HeaderValue::from_str(kind).ok());
    kind.into_iter().for_each(|kind| drop(headers.insert(CONTENT_TYPE, kind)));
    for name in PASSED {
        let found = publish.properties.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        if let Some(value) = found.and_then(|(_, value)| HeaderValue::from_str(value).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let body = publish.payload.clone();
    Ask { function, method: Method::POST, path, headers, body, protocol: version.name() }
}

/// 429 is the platform's or the function's "not now"; other 4xx would be no better a second time.
fn judge_answer(answer: &Answer) -> Ack {
    let said = || {
        let reason = answer.headers.get("x-nearpath-reason").and_then(|reason| reason.to_str().ok());
        format!("{} {}", answer.status, reason.unwrap_or("by the function"))
    };
    match answer.status {
        429 | 500.. => Ack::Failed(said()),
        400..=499 => Ack::Refused(said()),
        _ => Ack::Done,
    }
}

/// A message that several functions got is taken as the one did that liked it least.
fn worse(one: Ack, other: Ack) -> Ack {
    let weight = |ack: &Ack| match ack {
        Ack::Nobody => 0,
        Ack::Done => 1,
        Ack::Reserved => 2,
        Ack::Refused(_) => 3,
        Ack::Failed(_) => 4,
    };
    if weight(&other) > weight(&one) { other } else { one }
}

/// A connection's bytes.
struct Line {
    stream: TcpStream,
    read: BytesMut,
    version: Option<Version>,
    house: Rc<House>,
}

/// Why there is no next packet.
enum Heard {
    Gone,
    Wrong(End),
}

/// Why nothing could be said.
enum Mute {
    Gone,
    Stuck,
}

impl From<Mute> for Over {
    fn from(mute: Mute) -> Self {
        match mute {
            Mute::Gone => Self::Lost,
            Mute::Stuck => Self::Ended(End::Stuck),
        }
    }
}

impl Line {
    /// The next packet. May be dropped while it waits: nothing is lost.
    async fn next(&mut self) -> Result<In, Heard> {
        loop {
            let limit = self.house.limits.packet.min(if self.version.is_none() { FIRST_PACKET } else { usize::MAX });
            if let Some(packet) = codec::next(&mut self.read, self.version, limit).map_err(Heard::Wrong)? {
                return Ok(packet);
            }
            self.read.reserve(1024);
            match self.stream.read_buf(&mut self.read).await {
                Ok(0) | Err(_) => return Err(Heard::Gone),
                Ok(_) => {}
            }
        }
    }

    async fn say(&mut self, out: &Out) -> Result<(), Mute> {
        let version = self.version.unwrap_or(Version::V311);
        match codec::encode(out, version) {
            Some(bytes) => self.write(&bytes).await,
            None => Ok(()),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Mute> {
        match timeout(self.house.limits.patience, self.stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Mute::Gone),
            Err(_) => Err(Mute::Stuck),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_how_the_message_was_taken() {
        let answer = |status| Answer { status, headers: HeaderMap::new(), body: None };
        assert_eq!(judge_answer(&answer(204)), Ack::Done);
        assert_eq!(judge_answer(&answer(404)), Ack::Refused("404 by the function".into()));
        for status in [429, 500, 503, 504] {
            assert!(matches!(judge_answer(&answer(status)), Ack::Failed(_)), "{status}");
        }
        let failed = Ack::Failed("x".into());
        assert_eq!(worse(worse(Ack::Done, failed.clone()), Ack::Refused("y".into())), failed);
        assert_eq!(worse(Ack::Nobody, Ack::Done), Ack::Done);
    }
}
