//! Makes a customer's requests and checks the answers.

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

use super::Kind;
use super::customer::{Customer, Step};
use crate::load::connection::Connection;
use crate::load::open;
use crate::load::schedule::Schedule;
use crate::tally::{Failure, Tally};

/// What became of the requests, by kind.
pub(crate) type Outcome = BTreeMap<Kind, Tally>;

/// Where the shop is: the gateway, and the path of the frontend.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) addr: SocketAddr,
    /// For example `/function/frontend`.
    pub(crate) base: String,
}

/// A customer with a connection.
struct Visitor {
    shop: Arc<Shop>,
    customer: Customer,
    connection: Option<Connection>,
}

impl Visitor {
    fn new(shop: &Arc<Shop>, seed: u64) -> Self {
        Self {
            shop: Arc::clone(shop),
            customer: Customer::new(seed),
            connection: None,
        }
    }

    /// One visit. Its first request was due at `due`; the others are when the one before is answered. A visit ends with
    /// its first failure.
    async fn visit(&mut self, due: Instant) -> Vec<(Kind, Result<Duration, Failure>)> {
        let (mut due, mut done) = (due, Vec::new());
        for step in self.customer.visit() {
            let outcome = self.step(&step).await.map(|()| due.elapsed());
            let failed = outcome.is_err();
            done.push((step.kind, outcome));
            if failed {
                break;
            }
            due = Instant::now();
        }
        done
    }

    async fn step(&mut self, step: &Step) -> Result<(), Failure> {
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(self.shop.addr).await?,
        };
        let answer = connection.ask(self.request(step)).await?;
        self.connection = Some(connection);
        let body = answer.success()?.body;
        let mark = step.kind.mark().as_bytes();
        body.windows(mark.len())
            .any(|part| part == mark)
            .then_some(())
            .ok_or(Failure::Body)
    }

    fn request(&self, step: &Step) -> Request<Full<Bytes>> {
        let request = Request::builder()
            .method(&step.method)
            .uri(format!("{}{}", self.shop.base, step.path));
        let request = request
            .header("host", self.shop.addr.to_string())
            .header("cookie", self.customer.cookie());
        request
            .body(Full::from(step.body.clone()))
            .expect("paths and cookies of customers are plain ASCII")
    }
}

fn count(outcome: &mut Outcome, done: Vec<(Kind, Result<Duration, Failure>)>) {
    done.into_iter()
        .for_each(|(kind, result)| outcome.entry(kind).or_default().add(result));
}

/// `users` customers at a time, each pausing between `wait.0` and `wait.1` after a visit.
pub(crate) async fn closed(
    shop: Shop,
    users: u64,
    wait: (Duration, Duration),
    length: Duration,
) -> Outcome {
    let (shop, until, mut running) = (Arc::new(shop), Instant::now() + length, JoinSet::new());
    for seed in 0..users {
        let mut visitor = Visitor::new(&shop, seed);
        running.spawn(async move {
            let mut outcome = Outcome::default();
            while Instant::now() < until {
                count(&mut outcome, visitor.visit(Instant::now()).await);
                let pause = wait.0 + (wait.1 - wait.0).mul_f64(visitor.customer.dice.share());
                tokio::time::sleep_until(until.min(Instant::now() + pause)).await;
            }
            outcome
        });
    }
    let mut total = Outcome::default();
    for (kind, tally) in running.join_all().await.into_iter().flatten() {
        total.entry(kind).or_default().merge(&tally);
    }
    total
}

/// Visits by the clock, whatever became of the earlier ones; the first request's latency counts from when it was due.
pub(crate) async fn open(shop: Shop, schedule: Schedule) -> io::Result<Outcome> {
    let (shop, start) = (Arc::new(shop), Instant::now());
    let idle = Arc::new(Mutex::new(Vec::<Visitor>::new()));
    let begin = |n| {
        let (shop, idle, due) = (Arc::clone(&shop), Arc::clone(&idle), start + schedule.at(n));
        async move {
            let known = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut visitor = known.unwrap_or_else(|| Visitor::new(&shop, n));
            let done = visitor.visit(due).await;
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(visitor);
            done
        }
    };
    let mut outcome = Outcome::default();
    open::drive(schedule, start, begin)
        .await?
        .into_iter()
        .for_each(|done| count(&mut outcome, done));
    Ok(outcome)
}
