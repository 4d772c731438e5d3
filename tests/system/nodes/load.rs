//! An open loop of numbered calls at several gateways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::machines::Machines;
use crate::test_server::send_request;

/// Calls a second.
pub(super) const RATE: u32 = 200;
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
    /// Time after which a call has not ended.
    pub(super) call_limit: Duration,
    /// Two calls have the same number.
    pub(super) repeats_numbers: bool,
}

impl LoadPlan {
    /// Plans calls at the gateways of these machines.
    pub(super) fn new(
        machines: &Machines,
        at: &[usize],
        path: &'static str,
        method: Method,
    ) -> Self {
        let gateway = |at: &usize| machines.machines[*at].gateway();
        Self {
            gateways: at.iter().map(gateway).collect(),
            path,
            method,
            call_limit: CALL_LIMIT,
            repeats_numbers: false,
        }
    }
}

/// A running load.
pub(super) struct CallLoad {
    is_over: Arc<AtomicBool>,
    progress: Arc<LoadProgress>,
    task: tokio::task::JoinHandle<LoadOutcome>,
}

/// Calls of a running load.
#[derive(Default)]
pub(super) struct LoadProgress {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// Result of a load.
#[derive(Default)]
pub(super) struct LoadOutcome {
    pub(super) answered: usize,
    /// Text of each failure, with the number of the call.
    pub(super) failures: Vec<String>,
    /// Calls without an end among the failures.
    pub(super) open: usize,
}

/// Failure of a call.
struct CallFailure {
    text: String,
    is_open: bool,
}

impl LoadOutcome {
    /// Number of all calls.
    pub(super) fn calls(&self) -> usize {
        self.answered + self.failures.len()
    }

    /// Adds the calls of another load.
    pub(super) fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.open += other.open;
        self.failures.extend(other.failures);
    }

    pub(super) fn assert_no_failure(&self, machines: &Machines) {
        let failed = self.failures.len();
        let first: Vec<_> = self.failures.iter().take(20).collect();
        assert!(
            failed == 0 && self.answered > 0,
            "{failed} failed, {} answered: {first:?}\n{}",
            self.answered,
            machines.logs()
        );
    }

    fn note(&mut self, ended: Result<(), CallFailure>) {
        match ended {
            Ok(()) => self.answered += 1,
            Err(failure) => {
                self.open += usize::from(failure.is_open);
                self.failures.push(failure.text);
            }
        }
    }
}

impl LoadProgress {
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Number of calls that have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.begun() - self.ended.load(Ordering::SeqCst)
    }
}

impl CallLoad {
    /// Starts a load, which ends with [`CallLoad::finish`].
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
    pub(super) async fn finish(self) -> LoadOutcome {
        self.is_over.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}

async fn run(plan: LoadPlan, is_over: Arc<AtomicBool>, progress: Arc<LoadProgress>) -> LoadOutcome {
    let (start, mut running) = (Instant::now(), JoinSet::new());
    let mut outcome = LoadOutcome::default();
    for number in 0u32.. {
        sleep_until(start + Duration::from_secs(1) * number / RATE).await;
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let addr = plan.gateways[number as usize % plan.gateways.len()];
        progress.begun.fetch_add(1, Ordering::SeqCst);
        running.spawn(call(plan.clone(), addr, number, progress.clone()));
        while let Some(ended) = running.try_join_next() {
            outcome.note(ended.unwrap());
        }
    }
    while let Some(ended) = running.join_next().await {
        outcome.note(ended.unwrap());
    }
    outcome
}

/// Returns a number that no other call of this process has.
fn next_name() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

async fn call(
    plan: LoadPlan,
    addr: SocketAddr,
    number: u32,
    progress: Arc<LoadProgress>,
) -> Result<(), CallFailure> {
    let name = next_name() >> u32::from(plan.repeats_numbers);
    let request = Request::builder()
        .method(plan.method)
        .uri(format!("{}?{name}", plan.path))
        .header("host", "test")
        .body(Default::default())
        .unwrap();
    let answered = timeout(plan.call_limit, send_request(addr, request)).await;
    progress.ended.fetch_add(1, Ordering::SeqCst);
    let is_open = answered.is_err();
    let why = match answered {
        Ok(Ok(answer)) if answer.status().is_success() => return Ok(()),
        Ok(Ok(answer)) => format!("{}: {:?}", answer.status(), answer.body()),
        Ok(Err(error)) => format!("{error:?}"),
        Err(_) => format!("no end within {:?}", plan.call_limit),
    };
    let text = format!("call {number} at {addr}: {why}");
    Err(CallFailure { text, is_open })
}
