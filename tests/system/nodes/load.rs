//! An open loop of numbered calls at several gateways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::test_server::send_request;

/// Calls a second.
const RATE: u32 = 200;
/// Time after which a call has not ended.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Calls that a load sends.
#[derive(Clone)]
pub(super) struct LoadPlan {
    /// Gateways, in turn.
    pub(super) gateways: Vec<SocketAddr>,
    /// Path of the function. Each call adds its number.
    pub(super) path: &'static str,
    pub(super) method: Method,
}

/// A running load.
pub(super) struct NodeLoad {
    is_over: Arc<AtomicBool>,
    progress: Arc<LoadProgress>,
    task: tokio::task::JoinHandle<NodeLoadOutcome>,
}

/// Calls of a running load.
#[derive(Default)]
pub(super) struct LoadProgress {
    begun: AtomicUsize,
    ended: AtomicUsize,
    failed: AtomicUsize,
}

/// Result of a load.
#[derive(Default)]
pub(super) struct NodeLoadOutcome {
    pub(super) answered: usize,
    /// Text of each failure, with the number of the call.
    pub(super) failures: Vec<String>,
    /// Paths of the answers, each once.
    pub(super) paths: std::collections::BTreeMap<String, usize>,
}

impl LoadProgress {
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Number of calls that have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.begun() - self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }
}

impl NodeLoad {
    /// Starts a load, which ends with [`NodeLoad::finish`].
    pub(super) fn start(plan: LoadPlan) -> Self {
        let (is_over, progress) = (Arc::<AtomicBool>::default(), Arc::<LoadProgress>::default());
        let running = run(plan, is_over.clone(), progress.clone());
        Self {
            task: tokio::spawn(running),
            is_over,
            progress,
        }
    }

    pub(super) fn progress(&self) -> &LoadProgress {
        &self.progress
    }

    /// Waits until this many more calls have begun.
    pub(super) async fn wait_calls(&self, count: usize) {
        let target = self.progress.begun() + count;
        while self.progress.begun() < target && !self.task.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Begins no more calls, and waits until all have ended.
    pub(super) async fn finish(self) -> NodeLoadOutcome {
        self.is_over.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}

async fn run(
    plan: LoadPlan,
    is_over: Arc<AtomicBool>,
    progress: Arc<LoadProgress>,
) -> NodeLoadOutcome {
    let (start, mut running, mut outcome) = (Instant::now(), JoinSet::new(), Default::default());
    for number in 0u32.. {
        sleep_until(start + Duration::from_secs(1) * number / RATE).await;
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let addr = plan.gateways[number as usize % plan.gateways.len()];
        progress.begun.fetch_add(1, Ordering::SeqCst);
        running.spawn(call(plan.clone(), addr, number, progress.clone()));
        while let Some(ended) = running.try_join_next() {
            note(&mut outcome, ended.unwrap());
        }
    }
    while let Some(ended) = running.join_next().await {
        note(&mut outcome, ended.unwrap());
    }
    outcome
}

fn note(outcome: &mut NodeLoadOutcome, ended: Result<String, String>) {
    match ended {
        Ok(path) => {
            outcome.answered += 1;
            *outcome.paths.entry(path).or_default() += 1;
        }
        Err(failure) => outcome.failures.push(failure),
    }
}

async fn call(
    plan: LoadPlan,
    addr: SocketAddr,
    number: u32,
    progress: Arc<LoadProgress>,
) -> Result<String, String> {
    let request = Request::builder()
        .method(plan.method)
        .uri(format!("{}?{number}", plan.path))
        .header("host", "test")
        .header("x-nearpath-path", "1")
        .body(Default::default())
        .unwrap();
    let answered = timeout(CALL_LIMIT, send_request(addr, request)).await;
    progress.ended.fetch_add(1, Ordering::SeqCst);
    let result = match answered {
        Ok(Ok(answer)) if answer.status().is_success() => {
            let path = answer.headers().get("x-nearpath-path");
            return Ok(path
                .map_or("none", |path| path.to_str().unwrap())
                .to_owned());
        }
        Ok(Ok(answer)) => format!("{}: {:?}", answer.status(), answer.body()),
        Ok(Err(error)) => format!("{error:?}"),
        Err(_) => format!("no end within {CALL_LIMIT:?}"),
    };
    progress.failed.fetch_add(1, Ordering::SeqCst);
    Err(format!("call {number} at {addr}: {result}"))
}
