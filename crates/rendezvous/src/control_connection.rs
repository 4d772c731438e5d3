//! Serves one control connection: reads messages, sends queued items, and pings an idle worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use nearpath_daemon::drain::DrainWatch;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::metrics::RendezvousMetrics;
use super::outbox::OutboxItem;
use super::rate_limits::TokenBucket;
use super::shared_state::SharedState;
use super::state::ControlConnectionId;
use super::traffic_meter::TrafficMeter;
use nearpath_p2p::message::{
    CloseReason, ControlWelcome, ObserverAccess, RelayedFrame, RendezvousMessage, WorkerMessage,
};
use nearpath_p2p::ticket::{JobName, WorkerTicket};
use nearpath_p2p::websocket::WebSocket;

/// Serves a connection to its end.
pub(super) async fn serve(
    socket: WebSocket,
    ticket: WorkerTicket,
    shared: Arc<SharedState>,
    seen: SocketAddr,
    observe: ObserverAccess,
    _drain: DrainWatch,
) {
    let (now, bucket, job) = (Instant::now(), TokenBucket::default(), ticket.job.clone());
    let mut connection = ServedConnection {
        socket,
        shared,
        last_received: now,
        last_ping: now,
        bucket,
        read_again_at: None,
        job,
        meter: None,
    };
    let lifetime = ticket
        .until
        .saturating_sub(super::state::ClockReading::now().unix)
        .saturating_mul(1000);
    let (worker, job) = (ticket.worker.clone(), ticket.job.to_string());
    let welcome = RendezvousMessage::Welcome(ControlWelcome {
        worker,
        job,
        leader: ticket.leader,
        mapped_addr: seen,
        lifetime_ms: lifetime,
        observe,
    });
    // Boxed: the long-lived future of a connection must not reserve space for this one.
    if Box::pin(connection.send_message(&welcome)).await.is_err() {
        return;
    }
    drop(welcome);
    let (number, items) = connection.shared.connect(&ticket);
    let reason = connection.run(number, items).await;
    // Removed before the close message: nothing more is queued for a connection that is about to
    // end.
    connection.shared.disconnect(number);
    tracing::debug!(worker = %ticket.worker, job = %ticket.job, ?reason, "control connection: ended");
    if let Some(reason) = reason {
        connection.close_with_reason(reason).await;
    }
}

struct ServedConnection {
    socket: WebSocket,
    shared: Arc<SharedState>,
    /// Time of the worker's last frame.
    last_received: Instant,
    last_ping: Instant,
    bucket: TokenBucket,
    /// Time at which reading continues, after too many messages.
    read_again_at: Option<Instant>,
    job: JobName,
    /// Traffic meter; most connections never carry a frame.
    meter: Option<Box<TrafficMeter>>,
}

/// Connection is lost.
struct ConnectionGone;

/// Reason of the end, if the worker can still be notified.
type CloseOutcome = Option<CloseReason>;

impl ServedConnection {
    async fn run(
        &mut self,
        number: ControlConnectionId,
        mut items: mpsc::Receiver<OutboxItem>,
    ) -> CloseOutcome {
        loop {
            let wake = self.next_wake();
            let result = tokio::select! {
                item = items.recv() => self.send_item(item).await,
                // A throttled connection is not read: TCP then slows the worker (decision 36).
                message = self.socket.next(), if self.read_again_at.is_none() => self.handle_frame(number, message),
                () = tokio::time::sleep_until(wake.into()) => self.handle_timer().await,
            };
            if let Err(end) = result {
                return end;
            }
        }
    }

    fn next_wake(&self) -> Instant {
        // Three pings per timeout: two may be lost before the connection counts as dead.
        let ask = self.last_ping + self.shared.limits.silence_timeout / 3;
        self.read_again_at.map_or(ask, |ready| ready.min(ask))
    }

    async fn send_item(&mut self, item: Option<OutboxItem>) -> Result<(), CloseOutcome> {
        match item {
            Some(OutboxItem::Message(message)) => self
                .send_message(&message)
                .await
                .map_err(|ConnectionGone| None),
            Some(OutboxItem::Frame(frame)) => self
                .send_frame(Message::Binary(frame.frame().clone()))
                .await
                .map_err(|ConnectionGone| None),
            Some(OutboxItem::Close(why)) => Err(Some(why)),
            // A closed outbox without an end item overflowed: the worker does not read.
            None => Err(Some(CloseReason::Slow)),
        }
    }

    fn handle_frame(
        &mut self,
        number: ControlConnectionId,
        message: Option<Result<Message, impl Sized>>,
    ) -> Result<(), CloseOutcome> {
        let Some(Ok(message)) = message else {
            return Err(None);
        };
        let now = Instant::now();
        self.last_received = now;
        // Frames count before they are parsed: invalid ones cost as much.
        let wait = self.bucket.spend(1, self.shared.limits.message_rate, now);
        if !wait.is_zero() {
            RendezvousMetrics::increment(&self.shared.metrics.throttled_reads);
            self.read_again_at = Some(now + wait);
        }
        match message {
            Message::Text(text) => {
                // An invalid message ends the connection: a worker of another version must notice.
                let message = WorkerMessage::parse(&text).ok_or(Some(CloseReason::Unreadable))?;
                self.shared.handle_message(number, message);
                Ok(())
            }
            Message::Binary(frame) => self.relay_frame(number, frame),
            Message::Close(_) => Err(None),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(()),
        }
    }

    fn relay_frame(
        &mut self,
        number: ControlConnectionId,
        frame: Bytes,
    ) -> Result<(), CloseOutcome> {
        let session = RelayedFrame::session_of(&frame).ok_or(Some(CloseReason::Unreadable))?;
        // Allocated with the first frame, as most connections carry messages only.
        let meter = self
            .meter
            .get_or_insert_with(|| Box::new(TrafficMeter::new(self.shared.clone(), &self.job)));
        let wait = meter.record(frame.len());
        if !wait.is_zero() {
            // The later of both pauses counts: messages and bytes have their own rates.
            self.read_again_at = self.read_again_at.max(Some(Instant::now() + wait));
        }
        self.shared.relay_frame(number, session, frame);
        Ok(())
    }

    /// Handles a timer: reading may continue, or a ping is due.
    async fn handle_timer(&mut self) -> Result<(), CloseOutcome> {
        let now = Instant::now();
        if self.read_again_at.is_some_and(|ready| ready <= now) {
            self.read_again_at = None;
            self.last_received = now; // the silence was this side's pause
        }
        let silence = self.shared.limits.silence_timeout;
        // A connection that is not read cannot be silent.
        if self.read_again_at.is_none() && now.duration_since(self.last_received) >= silence {
            return Err(None);
        }
        if now.duration_since(self.last_ping) >= silence / 3 {
            self.last_ping = now;
            self.send_frame(Message::Ping(Bytes::new()))
                .await
                .map_err(|ConnectionGone| None)?;
        }
        Ok(())
    }

    async fn send_message(&mut self, message: &RendezvousMessage) -> Result<(), ConnectionGone> {
        let text = serde_json::to_string(message).expect("messages have text keys only");
        self.send_frame(Message::text(text)).await
    }

    async fn send_frame(&mut self, message: Message) -> Result<(), ConnectionGone> {
        // A worker that does not read would hold this task and its outbox forever.
        match tokio::time::timeout(self.shared.limits.send_timeout, self.socket.send(message)).await
        {
            Ok(sent) => sent.map_err(|_| ConnectionGone),
            Err(_) => {
                RendezvousMetrics::increment(&self.shared.metrics.slow_connections);
                Err(ConnectionGone)
            }
        }
    }

    /// Sends the reason, and closes.
    async fn close_with_reason(&mut self, reason: CloseReason) {
        // Codes of RFC 6455 section 7.4.1; 1012 asks the worker to reconnect.
        let code = match reason {
            CloseReason::Draining => CloseCode::Restart,
            CloseReason::Unreadable => CloseCode::Unsupported,
            _ => CloseCode::Policy,
        };
        if self
            .send_message(&RendezvousMessage::Close { reason })
            .await
            .is_ok()
        {
            let frame = CloseFrame {
                code,
                reason: reason.to_string().into(),
            };
            let _ = tokio::time::timeout(
                self.shared.limits.send_timeout,
                self.socket.close(Some(frame)),
            )
            .await;
        }
    }
}
