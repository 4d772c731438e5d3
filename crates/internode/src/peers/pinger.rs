//! Pings of another node, on a connection of their own: a long state does not delay them.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::abort_on_drop::AbortOnDrop;
use super::applied_states::AppliedState;
use super::http_connection::{HttpConnection, PeerTarget};
use crate::link::{PING_INTERVAL, PingSample};
use crate::protocol::{MAX_PING_BYTES, PingResponse};
use crate::server::unix_micros;

/// Time for one ping with its connection. An answer that comes later proves nothing.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Running pings, ended when this is dropped.
pub(super) struct Pinger {
    samples: mpsc::Receiver<PingSample>,
    _task: AbortOnDrop,
}

impl Pinger {
    /// Pings the node twice a second, and at once when the own routes reflect that it drains.
    pub(super) fn start(target: PeerTarget, applied: AppliedState) -> Self {
        let (sender, samples) = mpsc::channel(1);
        let task = AbortOnDrop::spawn(ping_forever(target, applied, sender));
        Self {
            samples,
            _task: task,
        }
    }

    /// Returns the next answered ping; `None`: there will be none. Cancel safe.
    pub(super) async fn next_sample(&mut self) -> Option<PingSample> {
        self.samples.recv().await
    }
}

async fn ping_forever(
    target: PeerTarget,
    mut applied: AppliedState,
    samples: mpsc::Sender<PingSample>,
) {
    let mut connection = None;
    let mut ticks = interval(PING_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = applied.changed() => {}
        }
        let path = applied.next_ping();
        let ping = ping(&target, &path, &mut connection);
        let Ok(Some(sample)) = timeout(PING_TIMEOUT, ping).await else {
            // A response that comes later would answer the wrong request.
            connection = None;
            continue;
        };
        if samples.send(sample).await.is_err() {
            return;
        }
    }
}

/// Pings once, on the open connection if there is one.
async fn ping(
    target: &PeerTarget,
    path: &str,
    open: &mut Option<HttpConnection>,
) -> Option<PingSample> {
    let connection = match open {
        Some(connection) => connection,
        None => open.insert(HttpConnection::open(target).await.ok()?),
    };
    let (sent_at, sent_micros) = (Instant::now(), unix_micros());
    let response = connection.get(path).await.ok()?;
    let body = Limited::new(response.into_body(), MAX_PING_BYTES)
        .collect()
        .await
        .ok()?;
    let round_trip = sent_at.elapsed();
    let answer: PingResponse = serde_json::from_slice(&body.to_bytes()).ok()?;
    Some(PingSample {
        round_trip,
        sent_micros,
        peer_micros: answer.time,
    })
}
