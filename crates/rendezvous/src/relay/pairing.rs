//! Pairs the two ends of a session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use nearpath_daemon::drain::DrainWatch;
use nearpath_types::SpiffeId;
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::forward;
use crate::job_rates::lock_or_recover;
use crate::metrics::RendezvousMetrics;
use crate::shared_state::SharedState;
use crate::traffic_meter::TrafficMeter;
use nearpath_p2p::ticket::RelayToken;
use nearpath_p2p::websocket::WebSocket;

/// Exchange of relay ends; see the module.
pub(crate) struct RelayExchange {
    inner: Mutex<PairingState>,
    shared: Arc<SharedState>,
}

#[derive(Default)]
struct PairingState {
    waiting: HashMap<[u8; 16], WaitingEnd>,
    /// Triggers that end joined relays.
    joined: HashMap<[u8; 16], (u64, oneshot::Sender<()>)>,
    last_number: u64,
}

/// End that waits for the other.
struct WaitingEnd {
    number: u64,
    worker: SpiffeId,
    handover: oneshot::Sender<WebSocket>,
}

/// Result of an arrival.
enum PairingResult {
    /// The waiting end took the connection over.
    HandedOver,
    /// The end waits, under this number.
    Waiting(WebSocket, u64, oneshot::Receiver<WebSocket>),
    /// Capacity is exhausted.
    Full(WebSocket),
}

impl RelayExchange {
    pub(crate) fn new(shared: Arc<SharedState>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            shared,
        })
    }

    pub(super) async fn serve_end(&self, socket: WebSocket, token: RelayToken, _drain: DrainWatch) {
        match self.pair_or_wait(socket, &token) {
            PairingResult::HandedOver => {}
            PairingResult::Full(web) => {
                forward::close_with_reason(web, CloseCode::Again, "the relay is full").await
            }
            PairingResult::Waiting(web, number, hand) => {
                self.wait_for_peer(web, &token, number, hand).await
            }
        }
    }

    /// Hands an end over, or makes it wait.
    ///
    /// A reconnecting end replaces its older connection, which may be dead without notice. If that
    /// was joined, the other end must reconnect, too.
    fn pair_or_wait(&self, mut socket: WebSocket, token: &RelayToken) -> PairingResult {
        RendezvousMetrics::increment(&self.shared.metrics.relay_ends);
        self.with_state(|inner| {
            // Removed and notified under the lock: two arrivals never end the same relay twice.
            if let Some((_, displace)) = inner.joined.remove(&token.session.0) {
                RendezvousMetrics::increment(&self.shared.metrics.rejoined_ends);
                let _ = displace.send(()); // that relay may have ended just now
            }
            if let Some(waiting) = inner.waiting.remove(&token.session.0)
                // The same worker again is a reconnect, not its peer.
                && waiting.worker != token.worker
            {
                match waiting.handover.send(socket) {
                    Ok(()) => return PairingResult::HandedOver,
                    Err(returned) => socket = returned,
                }
            }
            // Relaxed: the limit protects memory, and may be exceeded by relays that start at once.
            let joined = usize::try_from(
                self.shared
                    .metrics
                    .open_relays
                    .load(std::sync::atomic::Ordering::Relaxed),
            );
            if joined
                .unwrap_or(usize::MAX)
                .saturating_add(inner.waiting.len())
                >= self.shared.limits.max_relays
            {
                return PairingResult::Full(socket);
            }
            inner.last_number += 1;
            let (number, (handover, received)) = (inner.last_number, oneshot::channel());
            inner.waiting.insert(
                token.session.0,
                WaitingEnd {
                    number,
                    worker: token.worker.clone(),
                    handover,
                },
            );
            PairingResult::Waiting(socket, number, received)
        })
    }

    /// Waits for the other end. Meanwhile one frame is read, which is forwarded first.
    async fn wait_for_peer(
        &self,
        mut socket: WebSocket,
        token: &RelayToken,
        number: u64,
        mut handover: oneshot::Receiver<WebSocket>,
    ) {
        let gauge = self
            .shared
            .metrics
            .hold_gauge(|ledger| &ledger.waiting_ends);
        let timeout = tokio::time::sleep(self.shared.limits.relay_wait_timeout);
        tokio::pin!(timeout);
        let mut first = None;
        let other = loop {
            tokio::select! {
                other = &mut handover => break other.ok(),
                () = &mut timeout => break None,
                // One frame only: the rest waits in the sender's socket.
                message = socket.next(), if first.is_none() => match message {
                    Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => first = Some(message),
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return self.stop_waiting(token, number),
                },
            }
        };
        self.stop_waiting(token, number);
        // The gauge counts waiting ends only.
        drop(gauge);
        // The other end may have taken over at the moment at which this one timed out.
        match other.or_else(|| handover.try_recv().ok()) {
            Some(other) => self.run_relay(socket, other, first, token, number).await,
            None => {
                forward::close_with_reason(socket, CloseCode::Away, "the other end did not connect")
                    .await
            }
        }
    }

    async fn run_relay(
        &self,
        socket: WebSocket,
        other: WebSocket,
        first: Option<Message>,
        token: &RelayToken,
        number: u64,
    ) {
        let _gauge = self.shared.metrics.hold_gauge(|ledger| &ledger.open_relays);
        RendezvousMetrics::increment(&self.shared.metrics.joined_relays);
        let meter = TrafficMeter::new(self.shared.clone(), &token.job);
        let (displace, displaced) = oneshot::channel();
        // Registered before bytes flow, so that a reconnecting end finds it.
        self.with_state(|inner| inner.joined.insert(token.session.0, (number, displace)));
        let ended = forward::join_ends(socket, other, first, &meter, displaced).await;
        self.with_state(|inner| {
            // Only its own entry: a reconnected end may have replaced it already.
            if inner
                .joined
                .get(&token.session.0)
                .is_some_and(|(joined, _)| *joined == number)
            {
                inner.joined.remove(&token.session.0);
            }
        });
        ended.notify_ends().await;
    }

    fn stop_waiting(&self, token: &RelayToken, number: u64) {
        self.with_state(|inner| {
            // Only its own entry: a reconnected end may have replaced it already.
            if inner
                .waiting
                .get(&token.session.0)
                .is_some_and(|waiting| waiting.number == number)
            {
                inner.waiting.remove(&token.session.0);
            }
        });
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut PairingState) -> T) -> T {
        f(&mut lock_or_recover(&self.inner))
    }
}
