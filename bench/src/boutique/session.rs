//! Makes a customer's requests and checks the responses.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::RequestKind;
use super::customer::{ShopCustomer, ShopRequest};
use crate::load::connection::LoadConnection;
use crate::load::open;
use crate::load::schedule::ArrivalSchedule;
use crate::tally::{RequestFailure, RequestTally};

/// Outcomes of the requests by kind.
pub(crate) type OutcomeByKind = BTreeMap<RequestKind, RequestTally>;

/// Address of the shop: the gateway, and the path of the frontend.
#[derive(Debug, Clone)]
pub(crate) struct ShopAddress {
    pub(crate) addr: SocketAddr,
    /// Path of the frontend, for example `/function/frontend`.
    pub(crate) base: String,
}

/// A customer with a connection.
struct ShopSession {
    shop: Arc<ShopAddress>,
    customer: ShopCustomer,
    connection: Option<LoadConnection>,
}

impl ShopSession {
    fn new(shop: &Arc<ShopAddress>, seed: u64) -> Self {
        Self {
            shop: Arc::clone(shop),
            customer: ShopCustomer::new(seed),
            connection: None,
        }
    }

    /// Makes the next requests of the customer. The first is due at `due`, each other one after the
    /// response to its predecessor. The first failure ends the sequence.
    async fn make_requests(
        &mut self,
        due: Instant,
    ) -> Vec<(RequestKind, Result<Duration, RequestFailure>)> {
        let (mut due, mut done) = (due, Vec::new());
        for step in self.customer.next_requests() {
            let outcome = self.send_step(&step).await.map(|()| due.elapsed());
            let failed = outcome.is_err();
            done.push((step.kind, outcome));
            if failed {
                break;
            }
            // Later requests of a sequence are a closed loop: a customer reads a page before the
            // next click.
            due = Instant::now();
        }
        done
    }

    async fn send_step(&mut self, step: &ShopRequest) -> Result<(), RequestFailure> {
        // Taken out: a connection whose request fails is dropped and not used again.
        let mut connection = match self.connection.take().filter(LoadConnection::is_open) {
            Some(connection) => connection,
            None => LoadConnection::open(self.shop.addr).await?,
        };
        let answer = connection.send_request(self.build_request(step)).await?;
        self.connection = Some(connection);
        let body = answer.require_success()?.body;
        let mark = step.kind.answer_mark().as_bytes();
        body.windows(mark.len())
            .any(|part| part == mark)
            .then_some(())
            .ok_or(RequestFailure::Body)
    }

    fn build_request(&self, step: &ShopRequest) -> Request<Full<Bytes>> {
        let request = Request::builder()
            .method(&step.method)
            .uri(format!("{}{}", self.shop.base, step.path));
        let request = request
            .header("host", self.shop.addr.to_string())
            .header("cookie", self.customer.cookie_header());
        request
            .body(Full::from(step.body.clone()))
            // All parts come from the tables in `customer`.
            .expect("paths and cookies of customers are plain ASCII")
    }
}

fn count_outcomes(
    outcome: &mut OutcomeByKind,
    done: Vec<(RequestKind, Result<Duration, RequestFailure>)>,
) {
    done.into_iter()
        .for_each(|(kind, result)| outcome.entry(kind).or_default().record_outcome(result));
}

/// Runs `users` concurrent customers, each pausing between `wait.0` and `wait.1` after a visit.
pub(crate) async fn run_closed(
    shop: ShopAddress,
    users: u64,
    wait: (Duration, Duration),
    length: Duration,
) -> OutcomeByKind {
    let (shop, until, mut running) = (Arc::new(shop), Instant::now() + length, JoinSet::new());
    for seed in 0..users {
        let mut session = ShopSession::new(&shop, seed);
        running.spawn(async move {
            let mut outcome = OutcomeByKind::default();
            while Instant::now() < until {
                count_outcomes(&mut outcome, session.make_requests(Instant::now()).await);
                let pause =
                    wait.0 + (wait.1 - wait.0).mul_f64(session.customer.rng.next_fraction());
                // Not beyond the end, or the last pause would prolong the run.
                tokio::time::sleep_until(until.min(Instant::now() + pause)).await;
            }
            outcome
        });
    }
    let mut total = OutcomeByKind::default();
    for (kind, tally) in running.join_all().await.into_iter().flatten() {
        total.entry(kind).or_default().merge(&tally);
    }
    total
}

/// Starts visits at a constant rate, independent of earlier ones. The latency of a visit's first
/// request counts from its due time.
pub(crate) async fn run_open(
    shop: ShopAddress,
    schedule: ArrivalSchedule,
) -> io::Result<OutcomeByKind> {
    let (shop, start) = (Arc::new(shop), Instant::now());
    let idle = Arc::new(Mutex::new(Vec::<ShopSession>::new()));
    let begin = |n| {
        let (shop, idle, due) = (
            Arc::clone(&shop),
            Arc::clone(&idle),
            start + schedule.arrival_time(n),
        );
        async move {
            // Customers are reused, so that sessions and connections are kept as returning users
            // keep them.
            let known = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut session = known.unwrap_or_else(|| ShopSession::new(&shop, n));
            let done = session.make_requests(due).await;
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(session);
            done
        }
    };
    let mut outcome = OutcomeByKind::default();
    open::drive_schedule(schedule, start, begin)
        .await?
        .into_iter()
        .for_each(|done| count_outcomes(&mut outcome, done));
    Ok(outcome)
}
