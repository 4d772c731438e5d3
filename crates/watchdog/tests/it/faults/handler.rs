//! Tenant's code: responds with the request's body, and counts by the caller's number how often
//! each call has run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::TcpListener;
use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;

/// Header with the number of a call.
pub(crate) const NUMBER_HEADER: &str = "x-number";
/// Calls of this path wait until they may go on.
pub(crate) const HELD_PATH: &str = "/held";

/// Handler that counts its calls. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct CountingHandler(Rc<HandlerState>);

#[derive(Default)]
struct HandlerState {
    runs: RefCell<HashMap<String, u32>>,
    held_started: Notify,
    released: Notify,
}

impl CountingHandler {
    /// Answers on this socket, which may be another namespace's. Ends with the test's runtime.
    pub(crate) fn serve(&self, listener: TcpListener) {
        listener.set_nonblocking(true).unwrap();
        let (listener, handler) = (
            tokio::net::TcpListener::from_std(listener).unwrap(),
            self.clone(),
        );
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let handler = handler.clone();
                let answer = service_fn(move |request| {
                    let handler = handler.clone();
                    async move { Ok::<_, Infallible>(handler.answer(request).await) }
                });
                tokio::task::spawn_local(
                    http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
                );
            }
        });
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let number = request
            .headers()
            .get(NUMBER_HEADER)
            .map(|number| number.to_str().unwrap().to_owned());
        *self
            .0
            .runs
            .borrow_mut()
            .entry(number.unwrap_or_default())
            .or_default() += 1;
        if request.uri().path() == HELD_PATH {
            self.0.held_started.notify_one();
            self.0.released.notified().await;
        }
        match request.into_body().collect().await {
            Ok(body) => Response::new(Full::new(body.to_bytes())),
            Err(_) => Response::builder()
                .status(400)
                .body(Full::default())
                .unwrap(),
        }
    }

    /// A held call has reached the handler.
    pub(crate) async fn wait_held(&self) {
        self.0.held_started.notified().await;
    }

    /// Releases one held call.
    pub(crate) fn release_one(&self) {
        self.0.released.notify_one();
    }

    /// Returns how often the call of that number has run.
    pub(crate) fn run_count(&self, number: u32) -> u32 {
        self.0
            .runs
            .borrow()
            .get(&number.to_string())
            .copied()
            .unwrap_or(0)
    }

    /// Calls that have run.
    pub(crate) fn call_count(&self) -> usize {
        self.0.runs.borrow().len()
    }

    /// Returns whether no call has run more than once.
    pub(crate) fn all_ran_once(&self) -> bool {
        self.0.runs.borrow().values().all(|runs| *runs == 1)
    }
}
