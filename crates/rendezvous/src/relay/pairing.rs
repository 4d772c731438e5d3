//! Where the two ends of a session find each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use nearpath_daemon::drain::Watch;
use nearpath_types::SpiffeId;
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::forward;
use crate::job_rates::lock;
use crate::metrics::Ledger;
use crate::shared_state::Hall;
use crate::traffic_meter::Meter;
use nearpath_p2p::ticket::Crossing;
use nearpath_p2p::websocket::Web;

/// See the module.
pub(crate) struct Exchange {
    inner: Mutex<Inner>,
    hall: Arc<Hall>,
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<[u8; 16], Half>,
    /// What ends the relays that are joined.
    joined: HashMap<[u8; 16], (u64, oneshot::Sender<()>)>,
    last: u64,
}

/// An end that waits for the other.
struct Half {
    number: u64,
    you: SpiffeId,
    hand: oneshot::Sender<Web>,
}

/// What a newcomer finds.
enum Found {
    /// The other end took the connection over.
    Other,
    /// Nobody: it waits, under this number.
    Nobody(Web, u64, oneshot::Receiver<Web>),
    /// There is no room.
    Full(Web),
}

impl Exchange {
    pub(crate) fn new(hall: Arc<Hall>) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), hall })
    }

    pub(super) async fn enter(&self, web: Web, crossing: Crossing, _drain: Watch) {
        match self.find(web, &crossing) {
            Found::Other => {}
            Found::Full(web) => forward::farewell(web, CloseCode::Again, "the relay is full").await,
            Found::Nobody(web, number, hand) => self.wait(web, &crossing, number, hand).await,
        }
    }

    /// An end that comes a second time takes its own place: the older connection may be one whose end nobody has heard of. If it
    /// was joined, the other end has to come again, too.
    fn find(&self, mut web: Web, crossing: &Crossing) -> Found {
        Ledger::count(&self.hall.ledger.opened);
        self.with(|inner| {
            if let Some((_, displace)) = inner.joined.remove(&crossing.session.0) {
                Ledger::count(&self.hall.ledger.rejoined);
                let _ = displace.send(()); // it may have ended just now
            }
            if let Some(half) = inner.waiting.remove(&crossing.session.0)
                && half.you != crossing.you
            {
                match half.hand.send(web) {
                    Ok(()) => return Found::Other,
                    Err(back) => web = back,
                }
            }
            let joined = usize::try_from(self.hall.ledger.joined.load(std::sync::atomic::Ordering::Relaxed));
            if joined.unwrap_or(usize::MAX).saturating_add(inner.waiting.len()) >= self.hall.limits.relays {
                return Found::Full(web);
            }
            inner.last += 1;
            let (number, (hand, taken)) = (inner.last, oneshot::channel());
            inner.waiting.insert(crossing.session.0, Half { number, you: crossing.you.clone(), hand });
            Found::Nobody(web, number, taken)
        })
    }

    /// Meanwhile one frame is read, no more: it is passed on first.
    async fn wait(&self, mut web: Web, crossing: &Crossing, number: u64, mut hand: oneshot::Receiver<Web>) {
        let held = self.hall.ledger.hold(|ledger| &ledger.halves);
        let late = tokio::time::sleep(self.hall.limits.relay_wait);
        tokio::pin!(late);
        let mut first = None;
        let other = loop {
            tokio::select! {
                other = &mut hand => break other.ok(),
                () = &mut late => break None,
                message = web.next(), if first.is_none() => match message {
                    Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => first = Some(message),
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return self.forget(crossing, number),
                },
            }
        };
        self.forget(crossing, number);
        drop(held);
        // The other end may have come at the very moment at which this one gave up.
        match other.or_else(|| hand.try_recv().ok()) {
            Some(other) => self.join(web, other, first, crossing, number).await,
            None => forward::farewell(web, CloseCode::Away, "the other end did not come").await,
        }
    }

    async fn join(&self, web: Web, other: Web, first: Option<Message>, crossing: &Crossing, number: u64) {
        let _held = self.hall.ledger.hold(|ledger| &ledger.joined);
        Ledger::count(&self.hall.ledger.relays);
        let meter = Meter::new(self.hall.clone(), &crossing.job);
        let (displace, displaced) = oneshot::channel();
        self.with(|inner| inner.joined.insert(crossing.session.0, (number, displace)));
        let parting = forward::join(web, other, first, &meter, displaced).await;
        self.with(|inner| {
            if inner.joined.get(&crossing.session.0).is_some_and(|(joined, _)| *joined == number) {
                inner.joined.remove(&crossing.session.0);
            }
        });
        parting.part().await;
    }

    fn forget(&self, crossing: &Crossing, number: u64) {
        self.with(|inner| {
            if inner.waiting.get(&crossing.session.0).is_some_and(|half| half.number == number) {
                inner.waiting.remove(&crossing.session.0);
            }
        });
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut lock(&self.inner))
    }
}
