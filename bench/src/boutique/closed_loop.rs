//! Customers without pauses: a closed loop that measures the capacity of the shop.

use std::io::{self, Write};
use std::vec::IntoIter;

use memchr::memmem;

use super::customer::{ShopCustomer, ShopRequest};
use super::session::ShopAddress;
use crate::load::MeasureWindow;
use crate::load::epoll_client::{self, LoadCaller, LoadResult};
use crate::tally::RequestFailure;

/// Runs this number of customers until the window ends, and counts responses within it.
///
/// # Errors
/// When the client itself cannot run.
pub(crate) async fn run(
    shop: &ShopAddress,
    customers: usize,
    window: MeasureWindow,
) -> io::Result<LoadResult> {
    let all = (0..customers as u64)
        .map(|seed| LoopCustomer::new(shop, seed))
        .collect();
    epoll_client::run_each(shop.addr, all, window).await
}

/// A customer that makes the next request after each response. A visit ends with its first failure.
struct LoopCustomer {
    base_path: String,
    host: String,
    customer: ShopCustomer,
    cookie: String,
    steps: IntoIter<ShopRequest>,
    /// Text that the correct response to the current request contains.
    expected_text: &'static str,
    bytes: Vec<u8>,
}

impl LoopCustomer {
    fn new(shop: &ShopAddress, seed: u64) -> Self {
        let (base_path, host, customer) = (
            shop.base_path.clone(),
            shop.addr.to_string(),
            ShopCustomer::new(seed),
        );
        let (cookie, steps) = (String::new(), Vec::new().into_iter());
        Self {
            base_path,
            host,
            customer,
            cookie,
            steps,
            expected_text: "",
            bytes: Vec::new(),
        }
    }

    fn next_step(&mut self) -> ShopRequest {
        loop {
            if let Some(step) = self.steps.next() {
                return step;
            }
            self.steps = self.customer.next_requests().into_iter();
            self.cookie = self.customer.cookie_header();
        }
    }
}

impl LoadCaller for LoopCustomer {
    /// Writes the request as a browser would.
    fn next_request(&mut self) -> &[u8] {
        let ShopRequest {
            kind,
            method,
            path,
            body,
        } = self.next_step();
        let Self {
            base_path,
            host,
            cookie,
            bytes,
            ..
        } = self;
        self.expected_text = kind.expected_text();
        // The buffer is reused, so that a request costs no allocation in the load generator.
        bytes.clear();
        let written = write!(
            bytes,
            "{method} {base_path}{path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nCookie: {cookie}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        written.expect("memory takes all that is written");
        bytes
    }

    fn handle_outcome(
        &mut self,
        outcome: Result<&[u8], RequestFailure>,
    ) -> Result<(), RequestFailure> {
        let right = |body: &[u8]| memmem::find(body, self.expected_text.as_bytes()).is_some();
        let outcome =
            outcome.and_then(|body| right(body).then_some(()).ok_or(RequestFailure::Body));
        if outcome.is_err() {
            // The rest of the sequence depends on the failed request: an order needs its cart.
            self.steps = Vec::new().into_iter();
        }
        outcome
    }
}
