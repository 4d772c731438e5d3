//! Accepts HTTP/3 connections up to the limit of a port and the share of each source.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nearpath_wire::h3::{HandshakeCapacity, HandshakeVerdict, RetryPolicy, error_code};
use quinn::{Endpoint, Incoming};

use super::Http3ListenPort;
use super::connection::serve_connection;
use super::half_open::HalfOpen;
use crate::listen::ListenContext;
use crate::listen::connection_limit::{ConnectionLimit, ConnectionPermit};

/// Time for the last packets to leave.
const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// QUIC endpoints of a thread.
#[derive(Default)]
pub(crate) struct Http3Endpoints(RefCell<Vec<Endpoint>>);

impl Http3Endpoints {
    /// Closes all remaining connections.
    pub(crate) async fn close_all(&self) {
        for endpoint in self.0.take() {
            close_with_reason(&endpoint).await;
        }
    }
}

async fn close_with_reason(endpoint: &Endpoint) {
    endpoint.close(error_code::NO_ERROR, b"the gateway is stopping");
    // After that, the client runs into its idle timeout.
    let _ = tokio::time::timeout(CLOSE_GRACE, endpoint.wait_idle()).await;
}

/// Accepts connections until the drain begins.
/// [`ConnTable`](crate::listen::conn_state::ConnTable) drains those that exist then.
pub(crate) async fn accept_connections(
    context: Rc<ListenContext>,
    port: Http3ListenPort,
    endpoints: Rc<Http3Endpoints>,
) -> io::Result<()> {
    let endpoint = port
        .server_config
        .open_endpoint(port.socket.try_clone()?, port.thread)
        .map_err(|error| io::Error::new(error.kind(), format!("HTTP/3 socket: {error}")))
        .inspect_err(|_| leave_drain_barrier(&port))?;
    endpoints.0.borrow_mut().push(endpoint.clone());
    let limit = ConnectionLimit::new(port.max_connections);
    let (drain, drained) = (port.drain.clone(), port.drained.clone());
    let retry_policy = Rc::new(Cell::new(RetryPolicy::new(port.retry_above_handshakes)));
    let port = Rc::new(port);
    tokio::select! {
        () = accept_until_dropped(&context, &port, &endpoint, &limit, &retry_policy) => {}
        () = drain.signaled() => {}
    }
    context.worker.spawn(async move {
        let none_left = async {
            limit.wait_until_unused().await;
            // No socket of the reuseport group closes before all threads are done: the kernel
            // would renumber the others.
            drained.wait().await;
        };
        tokio::select! {
            () = none_left => {}
            () = refuse_connections(&endpoint) => {}
        }
        close_with_reason(&endpoint).await;
    });
    Ok(())
}

/// Counts a thread without an endpoint as drained. The others would wait for it otherwise.
fn leave_drain_barrier(port: &Http3ListenPort) {
    let drained = port.drained.clone();
    tokio::task::spawn_local(async move { drained.wait().await });
}

/// Refuses new connections, so that their clients need not wait for a timeout.
async fn refuse_connections(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
}

async fn accept_until_dropped(
    context: &Rc<ListenContext>,
    port: &Rc<Http3ListenPort>,
    endpoint: &Endpoint,
    limit: &ConnectionLimit,
    retry_policy: &Rc<Cell<RetryPolicy>>,
) {
    while let Some(incoming) = endpoint.accept().await {
        let is_validated = incoming.remote_address_validated();
        // Not awaited: a QUIC client retries by itself, and a refusal tells it to go elsewhere.
        let permit = match is_validated {
            true => limit.try_admit(incoming.remote_address().ip()),
            false => limit.try_admit_unvalidated(),
        };
        let capacity = match permit {
            Some(_) => HandshakeCapacity::Free,
            None if !is_validated && limit.has_room() => HandshakeCapacity::ForValidated,
            None => HandshakeCapacity::Exhausted,
        };
        // A small copy in a `Cell`, which the guards of open handshakes share.
        let mut now = retry_policy.get();
        let verdict = now.decide_handshake(is_validated, capacity);
        retry_policy.set(now);
        apply_verdict(context, port, incoming, verdict, permit, retry_policy);
    }
}

fn apply_verdict(
    context: &Rc<ListenContext>,
    port: &Rc<Http3ListenPort>,
    incoming: Incoming,
    verdict: HandshakeVerdict,
    permit: Option<ConnectionPermit>,
    retry_policy: &Rc<Cell<RetryPolicy>>,
) {
    let worker = &context.worker;
    let counts = &worker.totals.http3;
    match (verdict, permit) {
        (HandshakeVerdict::Admit, Some(permit)) => {
            worker.totals.connections.fetch_add(1, Ordering::Relaxed);
            counts.connections.fetch_add(1, Ordering::Relaxed);
            worker.spawn(serve_connection(
                context.clone(),
                port.clone(),
                incoming,
                HalfOpen(retry_policy.clone()),
                permit,
            ));
        }
        (HandshakeVerdict::Retry, _) => {
            counts.retries.fetch_add(1, Ordering::Relaxed);
            let _ = incoming.retry(); // fails only if the address is proven already
        }
        _ => {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            incoming.refuse();
        }
    }
}
