//! Customers without pauses: a closed loop, to find out how many visits a shop can take.

use std::io::{self, Write};
use std::vec::IntoIter;

use memchr::memmem;

use super::customer::{Customer, Step};
use super::visit::Shop;
use crate::load::Window;
use crate::load::lean::{self, Caller, Loaded};
use crate::tally::Failure;

/// So many customers until the window ends; counts the requests that were answered in it.
///
/// # Errors
/// When the client itself cannot run.
pub(crate) async fn run(shop: &Shop, customers: usize, window: Window) -> io::Result<Loaded> {
    let all = (0..customers as u64)
        .map(|seed| Hasty::new(shop, seed))
        .collect();
    lean::run_each(shop.addr, all, window).await
}

/// A customer who makes the next request as soon as the last one is answered. A visit ends with its first failure.
struct Hasty {
    base: String,
    host: String,
    customer: Customer,
    cookie: String,
    visit: IntoIter<Step>,
    /// What the right answer to the request underway holds.
    mark: &'static str,
    bytes: Vec<u8>,
}

impl Hasty {
    fn new(shop: &Shop, seed: u64) -> Self {
        let (base, host, customer) = (
            shop.base.clone(),
            shop.addr.to_string(),
            Customer::new(seed),
        );
        let (cookie, visit) = (String::new(), Vec::new().into_iter());
        Self {
            base,
            host,
            customer,
            cookie,
            visit,
            mark: "",
            bytes: Vec::new(),
        }
    }

    fn step(&mut self) -> Step {
        loop {
            if let Some(step) = self.visit.next() {
                return step;
            }
            self.visit = self.customer.visit().into_iter();
            self.cookie = self.customer.cookie();
        }
    }
}

impl Caller for Hasty {
    /// What a browser would send.
    fn request(&mut self) -> &[u8] {
        let Step {
            kind,
            method,
            path,
            body,
        } = self.step();
        let Self {
            base,
            host,
            cookie,
            bytes,
            ..
        } = self;
        self.mark = kind.mark();
        bytes.clear();
        let written = write!(
            bytes,
            "{method} {base}{path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nCookie: {cookie}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        written.expect("memory takes all that is written");
        bytes
    }

    fn heard(&mut self, outcome: Result<&[u8], Failure>) -> Result<(), Failure> {
        let right = |body: &[u8]| memmem::find(body, self.mark.as_bytes()).is_some();
        let outcome = outcome.and_then(|body| right(body).then_some(()).ok_or(Failure::Body));
        if outcome.is_err() {
            self.visit = Vec::new().into_iter();
        }
        outcome
    }
}
