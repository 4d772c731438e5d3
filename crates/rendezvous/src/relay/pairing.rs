//! Where the two ends of a session find each other.

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

/// See the module.
pub(crate) struct RelayExchange {
    inner: Mutex<PairingState>,
    shared: Arc<SharedState>,
}

#[derive(Default)]
struct PairingState {
    waiting: HashMap<[u8; 16], WaitingEnd>,
    /// What ends the relays that are joined.
    joined: HashMap<[u8; 16], (u64, oneshot::Sender<()>)>,
    last_number: u64,
}

/// An end that waits for the other.
struct WaitingEnd {
    number: u64,
    worker: SpiffeId,
    handover: oneshot::Sender<WebSocket>,
}

/// What a newcomer finds.
enum PairingResult {
    /// The other end took the connection over.
    HandedOver,
    /// Nobody: it waits, under this number.
    Waiting(WebSocket, u64, oneshot::Receiver<WebSocket>),
    /// There is no room.
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

    /// An end that comes a second time takes its own place: the older connection may be one whose end nobody has heard of. If it
    /// was joined, the other end has to come again, too.
    fn pair_or_wait(&self, mut socket: WebSocket, token: &RelayToken) -> PairingResult {
        RendezvousMetrics::increment(&self.shared.metrics.relay_ends);
        self.with_state(|inner| {
            if let Some((_, displace)) = inner.joined.remove(&token.session.0) {
                RendezvousMetrics::increment(&self.shared.metrics.rejoined_ends);
                let _ = displace.send(()); // it may have ended just now
            }
            if let Some(waiting) = inner.waiting.remove(&token.session.0)
                && waiting.worker != token.you
            {
                match waiting.handover.send(socket) {
                    Ok(()) => return PairingResult::HandedOver,
                    Err(returned) => socket = returned,
                }
            }
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
                    worker: token.you.clone(),
                    handover,
                },
            );
            PairingResult::Waiting(socket, number, received)
        })
    }

    /// Meanwhile one frame is read, no more: it is passed on first.
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
                message = socket.next(), if first.is_none() => match message {
                    Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => first = Some(message),
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return self.stop_waiting(token, number),
                },
            }
        };
        self.stop_waiting(token, number);
        drop(gauge);
        // The other end may have come at the very moment at which this one gave up.
        match other.or_else(|| handover.try_recv().ok()) {
            Some(other) => self.run_relay(socket, other, first, token, number).await,
            None => {
                forward::close_with_reason(socket, CloseCode::Away, "the other end did not come")
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
        self.with_state(|inner| inner.joined.insert(token.session.0, (number, displace)));
        let ended = forward::join_ends(socket, other, first, &meter, displaced).await;
        self.with_state(|inner| {
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
