//! One line: reads what its worker says, writes what it is told, and asks now and then whether it is there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use nearpath_daemon::drain::Watch;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::metrics::Ledger;
use super::outbox::Letter;
use super::rate_limits::Bucket;
use super::shared_state::Hall;
use super::state::LineNo;
use super::traffic_meter::Meter;
use nearpath_p2p::message::{Bye, Observe, Parcel, Said, Told, Welcome};
use nearpath_p2p::ticket::{Job, Ticket};
use nearpath_p2p::websocket::Web;

/// Serves a line to its end.
pub(super) async fn serve(
    web: Web,
    ticket: Ticket,
    hall: Arc<Hall>,
    seen: SocketAddr,
    observe: Observe,
    _drain: Watch,
) {
    let (now, bucket, of) = (Instant::now(), Bucket::default(), ticket.job.clone());
    let mut line = Line { web, hall, heard: now, asked: now, bucket, ready: None, job: of, meter: None };
    let life = ticket.until.saturating_sub(super::state::Moment::now().unix).saturating_mul(1000);
    let (you, job) = (ticket.you.clone(), ticket.job.to_string());
    let welcome = Told::Welcome(Welcome { you, job, leader: ticket.leader, seen, life, observe });
    if Box::pin(line.tell(&welcome)).await.is_err() {
        return;
    }
    drop(welcome);
    let (number, letters) = line.hall.arrive(&ticket);
    let why = line.run(number, letters).await;
    line.hall.leave(number);
    tracing::debug!(worker = %ticket.you, job = %ticket.job, ?why, "a line has ended");
    if let Some(why) = why {
        line.end(why).await;
    }
}

struct Line {
    web: Web,
    hall: Arc<Hall>,
    /// When the worker was last heard.
    heard: Instant,
    asked: Instant,
    bucket: Bucket,
    /// When it is read again, if it has said too much.
    ready: Option<Instant>,
    job: Job,
    /// Most lines never carry a parcel.
    meter: Option<Box<Meter>>,
}

/// The connection is gone.
struct Gone;

/// Why a line ends, if there is anybody to tell.
type End = Option<Bye>;

impl Line {
    async fn run(&mut self, number: LineNo, mut letters: mpsc::Receiver<Letter>) -> End {
        loop {
            let wake = self.next_wake();
            let ended = tokio::select! {
                letter = letters.recv() => self.deliver(letter).await,
                message = self.web.next(), if self.ready.is_none() => self.hear(number, message),
                () = tokio::time::sleep_until(wake.into()) => self.wake().await,
            };
            if let Err(end) = ended {
                return end;
            }
        }
    }

    fn next_wake(&self) -> Instant {
        let ask = self.asked + self.hall.limits.silence / 3;
        self.ready.map_or(ask, |ready| ready.min(ask))
    }

    async fn deliver(&mut self, letter: Option<Letter>) -> Result<(), End> {
        match letter {
            Some(Letter::Tell(told)) => self.tell(&told).await.map_err(|Gone| None),
            Some(Letter::Carry(parcel)) => {
                self.send(Message::Binary(parcel.frame().clone())).await.map_err(|Gone| None)
            }
            Some(Letter::End(why)) => Err(Some(why)),
            None => Err(Some(Bye::Slow)),
        }
    }

    fn hear(&mut self, number: LineNo, message: Option<Result<Message, impl Sized>>) -> Result<(), End> {
        let Some(Ok(message)) = message else { return Err(None) };
        let now = Instant::now();
        self.heard = now;
        let wait = self.bucket.spend(1, self.hall.limits.said, now);
        if !wait.is_zero() {
            Ledger::count(&self.hall.ledger.throttled);
            self.ready = Some(now + wait);
        }
        match message {
            Message::Text(text) => {
                let said = Said::read(&text).ok_or(Some(Bye::Unreadable))?;
                self.hall.say(number, said);
                Ok(())
            }
            Message::Binary(frame) => self.carry(number, frame),
            Message::Close(_) => Err(None),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(()),
        }
    }

    fn carry(&mut self, number: LineNo, frame: Bytes) -> Result<(), End> {
        let session = Parcel::session_of(&frame).ok_or(Some(Bye::Unreadable))?;
        let meter = self.meter.get_or_insert_with(|| Box::new(Meter::new(self.hall.clone(), &self.job)));
        let wait = meter.pass(frame.len());
        if !wait.is_zero() {
            self.ready = self.ready.max(Some(Instant::now() + wait));
        }
        self.hall.carry(number, session, frame);
        Ok(())
    }

    /// Time to read again, or to ask whether the worker is there.
    async fn wake(&mut self) -> Result<(), End> {
        let now = Instant::now();
        if self.ready.is_some_and(|ready| ready <= now) {
            self.ready = None;
            self.heard = now; // it was not listened to
        }
        let silence = self.hall.limits.silence;
        if self.ready.is_none() && now.duration_since(self.heard) >= silence {
            return Err(None);
        }
        if now.duration_since(self.asked) >= silence / 3 {
            self.asked = now;
            self.send(Message::Ping(Bytes::new())).await.map_err(|Gone| None)?;
        }
        Ok(())
    }

    async fn tell(&mut self, told: &Told) -> Result<(), Gone> {
        let text = serde_json::to_string(told).expect("messages have text keys only");
        self.send(Message::text(text)).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Gone> {
        match tokio::time::timeout(self.hall.limits.slow, self.web.send(message)).await {
            Ok(sent) => sent.map_err(|_| Gone),
            Err(_) => {
                Ledger::count(&self.hall.ledger.slow);
                Err(Gone)
            }
        }
    }

    /// Says why, and closes.
    async fn end(&mut self, why: Bye) {
        let code = match why {
            Bye::Draining => CloseCode::Restart,
            Bye::Unreadable => CloseCode::Unsupported,
            _ => CloseCode::Policy,
        };
        if self.tell(&Told::Bye { why }).await.is_ok() {
            let frame = CloseFrame { code, reason: why.to_string().into() };
            let _ = tokio::time::timeout(self.hall.limits.slow, self.web.close(Some(frame))).await;
        }
    }
}
