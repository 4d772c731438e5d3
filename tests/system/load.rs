//! A small load whose requests start on schedule, whatever became of earlier ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Request;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Result of a load.
pub(crate) struct LoadOutcome {
    pub(crate) answered: usize,
    pub(crate) failures: Vec<String>,
    /// Times of the answers, in the order in which the requests began.
    pub(crate) latencies: Vec<Duration>,
}

/// Progress of a running load.
#[derive(Debug, Default)]
pub(crate) struct LoadCounts {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl LoadCounts {
    /// Number of started requests.
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Number of requests without a response.
    pub(crate) fn under_way(&self) -> usize {
        self.begun() - self.ended.load(Ordering::SeqCst)
    }
}

/// Sends `rate` requests a second for `length`, each on a connection of its own, and waits for all.
pub(crate) async fn open_loop(
    addr: SocketAddr,
    path: &str,
    rate: u32,
    length: Duration,
) -> LoadOutcome {
    counted_loop(addr, path, (rate, length), &Arc::default()).await
}

/// Runs an open loop and counts its progress.
pub(crate) async fn counted_loop(
    addr: SocketAddr,
    path: &str,
    schedule: (u32, Duration),
    counts: &Arc<LoadCounts>,
) -> LoadOutcome {
    bounded_loop(addr, path, schedule, (usize::MAX, counts)).await
}

/// Runs a load that omits a request while `max_under_way` others have no response.
///
/// An open loop that asks for more than a busy machine can do only fills queues.
pub(crate) async fn bounded_loop(
    addr: SocketAddr,
    path: &str,
    (rate, length): (u32, Duration),
    (max_under_way, counts): (usize, &Arc<LoadCounts>),
) -> LoadOutcome {
    let (start, mut running) = (Instant::now(), JoinSet::new());
    let total = (f64::from(rate) * length.as_secs_f64()) as u32;
    for n in 0..total {
        sleep_until(start + Duration::from_secs(1) * n / rate).await;
        if counts.under_way() >= max_under_way {
            continue;
        }
        let request = Request::post(path)
            .header("host", "test")
            .body(Default::default())
            .unwrap();
        let counts = Arc::clone(counts);
        counts.begun.fetch_add(1, Ordering::SeqCst);
        running.spawn(async move {
            let sent = Instant::now();
            let answered = tokio::time::timeout(
                Duration::from_secs(20),
                crate::test_server::send_request(addr, request),
            )
            .await;
            counts.ended.fetch_add(1, Ordering::SeqCst);
            match answered {
                Ok(Ok(answer)) if answer.status().is_success() => Ok(sent.elapsed()),
                Ok(Ok(answer)) => Err(format!(
                    "{}: {}",
                    answer.status(),
                    String::from_utf8_lossy(answer.body())
                )),
                Ok(Err(error)) => Err(format!("{error:?}")),
                Err(_) => Err("no answer within 20 s".to_owned()),
            }
        });
    }
    let (mut latencies, mut failures) = (Vec::new(), Vec::new());
    for result in running.join_all().await {
        match result {
            Ok(latency) => latencies.push(latency),
            Err(failure) => failures.push(failure),
        }
    }
    LoadOutcome {
        answered: latencies.len(),
        failures,
        latencies,
    }
}
