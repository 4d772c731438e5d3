//! Sends the requests of customers and checks the responses, in an open or a closed loop.

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
    pub(crate) base_path: String,
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

    /// Makes the customer's next visit. Its first request is due at `due`, each other one after the
    /// response to its predecessor. The first failure ends the visit.
    async fn run_customer_session(
        &mut self,
        due: Instant,
    ) -> Vec<(RequestKind, Result<Duration, RequestFailure>)> {
        let (mut due, mut outcomes) = (due, Vec::new());
        for request in self.customer.next_requests() {
            let outcome = self.send_request(&request).await.map(|()| due.elapsed());
            let failed = outcome.is_err();
            outcomes.push((request.kind, outcome));
            if failed {
                break;
            }
            // Later requests of a visit are a closed loop: a customer reads a page before the next
            // click.
            due = Instant::now();
        }
        outcomes
    }

    async fn send_request(&mut self, request: &ShopRequest) -> Result<(), RequestFailure> {
        // Removed while in use: a connection whose request fails is not used again.
        let mut connection = match self.connection.take().filter(LoadConnection::is_open) {
            Some(connection) => connection,
            None => LoadConnection::open(self.shop.addr).await?,
        };
        let response = connection.send_request(self.build_request(request)).await?;
        self.connection = Some(connection);
        let body = response.require_success()?.body;
        let expected = request.kind.expected_text().as_bytes();
        body.windows(expected.len())
            .any(|part| part == expected)
            .then_some(())
            .ok_or(RequestFailure::Body)
    }

    fn build_request(&self, request: &ShopRequest) -> Request<Full<Bytes>> {
        Request::builder()
            .method(&request.method)
            .uri(format!("{}{}", self.shop.base_path, request.path))
            .header("host", self.shop.addr.to_string())
            .header("cookie", self.customer.cookie_header())
            .body(Full::from(request.body.clone()))
            // All parts come from the constants in `customer`.
            .expect("paths and cookies of customers are plain ASCII")
    }
}

fn count_outcomes(
    totals: &mut OutcomeByKind,
    outcomes: Vec<(RequestKind, Result<Duration, RequestFailure>)>,
) {
    outcomes
        .into_iter()
        .for_each(|(kind, outcome)| totals.entry(kind).or_default().record_outcome(outcome));
}

/// Runs `users` concurrent customers. Each pauses between `pause.0` and `pause.1` after a visit.
pub(crate) async fn run_closed(
    shop: ShopAddress,
    users: u64,
    pause: (Duration, Duration),
    duration: Duration,
) -> OutcomeByKind {
    let (shop, until, mut running) = (Arc::new(shop), Instant::now() + duration, JoinSet::new());
    for seed in 0..users {
        let mut session = ShopSession::new(&shop, seed);
        running.spawn(async move {
            let mut totals = OutcomeByKind::default();
            while Instant::now() < until {
                count_outcomes(
                    &mut totals,
                    session.run_customer_session(Instant::now()).await,
                );
                let wait =
                    pause.0 + (pause.1 - pause.0).mul_f64(session.customer.rng.next_fraction());
                // Bounded by the end, because the last pause would prolong the run.
                tokio::time::sleep_until(until.min(Instant::now() + wait)).await;
            }
            totals
        });
    }
    let mut totals = OutcomeByKind::default();
    for (kind, tally) in running.join_all().await.into_iter().flatten() {
        totals.entry(kind).or_default().merge(&tally);
    }
    totals
}

/// Starts visits at a constant rate, independent of earlier ones. The latency of a visit's first
/// request counts from its due time.
pub(crate) async fn run_open(
    shop: ShopAddress,
    schedule: ArrivalSchedule,
) -> io::Result<OutcomeByKind> {
    let (shop, start) = (Arc::new(shop), Instant::now());
    let idle = Arc::new(Mutex::new(Vec::<ShopSession>::new()));
    let start_visit = |n| {
        let (shop, idle, due) = (
            Arc::clone(&shop),
            Arc::clone(&idle),
            start + schedule.arrival_time(n),
        );
        async move {
            // Customers return with their session and connection, as real users do.
            let returning = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut session = returning.unwrap_or_else(|| ShopSession::new(&shop, n));
            let outcomes = session.run_customer_session(due).await;
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(session);
            outcomes
        }
    };
    let mut totals = OutcomeByKind::default();
    open::drive_schedule(schedule, start, start_visit)
        .await?
        .into_iter()
        .for_each(|outcomes| count_outcomes(&mut totals, outcomes));
    Ok(totals)
}
