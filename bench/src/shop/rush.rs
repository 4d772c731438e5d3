//! Customers without pauses: a closed loop, to find out how many visits a shop can take.

use std::io::Write;
use std::rc::Rc;

use memchr::memmem;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use super::customer::{Customer, Step};
use super::visit::Shop;
use crate::load::Window;
use crate::load::lean::Lean;
use crate::tally::{Failure, Tally};

/// So many customers until the window ends; counts the requests that were answered in it. Must run inside a `LocalSet`.
pub(crate) async fn run(shop: &Shop, customers: usize, window: Window) -> Tally {
    let (shop, mut running) = (Rc::new(shop.clone()), JoinSet::new());
    for seed in 0..customers as u64 {
        running.spawn_local(customer(Rc::clone(&shop), seed, window));
    }
    let mut total = Tally::default();
    while let Some(done) = running.join_next().await {
        total.merge(&done.expect("a customer does not panic"));
    }
    total
}

async fn customer(shop: Rc<Shop>, seed: u64, window: Window) -> Tally {
    let (mut tally, mut kept, mut bytes) = (Tally::default(), None, Vec::new());
    let (mut customer, host) = (Customer::new(seed), shop.addr.to_string());
    loop {
        let visit = customer.visit();
        let cookie = customer.cookie();
        for step in visit {
            let start = Instant::now();
            if start >= window.until {
                return tally;
            }
            write(&mut bytes, &step, &shop.base, &host, &cookie);
            let outcome = ask(&mut kept, &shop, &step, &bytes).await;
            let (end, failed) = (Instant::now(), outcome.is_err());
            if window.holds(end) {
                tally.add(outcome.map(|()| end - start));
            }
            if failed {
                kept = None;
                tokio::time::sleep(Duration::from_millis(1)).await; // a dead server is not asked at full speed
                break;
            }
        }
    }
}

/// What a browser would send.
fn write(bytes: &mut Vec<u8>, step: &Step, base: &str, host: &str, cookie: &str) {
    bytes.clear();
    let (method, path, length) = (&step.method, &step.path, step.body.len());
    let written = write!(
        bytes,
        "{method} {base}{path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nCookie: {cookie}\r\n\
         Content-Length: {length}\r\n\r\n{}",
        step.body
    );
    written.expect("memory takes all that is written");
}

async fn ask(kept: &mut Option<Lean>, shop: &Shop, step: &Step, bytes: &[u8]) -> Result<(), Failure> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => Lean::open(shop.addr).await?,
    };
    let (body, last) = connection.ask(bytes).await?;
    let right = memmem::find(body, step.kind.mark().as_bytes()).is_some();
    if !last {
        *kept = Some(connection);
    }
    right.then_some(()).ok_or(Failure::Body)
}
