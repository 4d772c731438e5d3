//! Platform errors of calls to a function's own port. The watchdog's reasons hold here, although it is not
//! in the way (ADR 89).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::{PlatformError, Reason};
use tokio::net::TcpStream;

use crate::COMPONENT;
use crate::context::WorkerContext;
use crate::function::FunctionEndpoint;
use crate::transport::{InvalidResponse, ResponseHeadError};

/// Time in which a watchdog that is alive accepts a connection.
const WATCHDOG_TIMEOUT: Duration = Duration::from_millis(250);
/// Cause of a lost connection, for callers.
const MEMORY_CAUSE: &str =
    "the kernel killed a process of the instance, because it needed more memory than it may use";

/// Returns the error for a call whose response did not come. It began at `began`.
pub(crate) async fn own_port_error(
    worker: &WorkerContext,
    (endpoint, function): (&Arc<FunctionEndpoint>, &str),
    began: Instant,
    error: &ResponseHeadError,
) -> PlatformError {
    match error {
        ResponseHeadError::Invalid(error) => invalid_error((endpoint, function), *error),
        error => lost_error(worker, (endpoint, function), began, error).await,
    }
}

fn invalid_error(
    (endpoint, function): (&FunctionEndpoint, &str),
    error: InvalidResponse,
) -> PlatformError {
    let reason = match error {
        InvalidResponse::SwitchingProtocols => Reason::InstanceDied,
        _ => Reason::FunctionFailed,
    };
    let text = format!(
        "{} of {function} answered with invalid HTTP: {error}",
        endpoint.id
    );
    PlatformError::new(COMPONENT, reason, text)
}

async fn lost_error(
    worker: &WorkerContext,
    (endpoint, function): (&Arc<FunctionEndpoint>, &str),
    began: Instant,
    error: &ResponseHeadError,
) -> PlatformError {
    let text = format!(
        "{} of {function} closed the connection before it answered: {error}",
        endpoint.id
    );
    let is_out_of_memory = endpoint.server().is_some_and(|server| {
        let pools = &worker.loopback_pools;
        pools.was_killed_for_memory(endpoint, server, began)
    });
    if is_out_of_memory {
        let text = format!("{text}: {MEMORY_CAUSE}");
        return PlatformError::new(COMPONENT, Reason::FunctionFailed, text)
            .governed_by("limits.memory");
    }
    let reason = match has_watchdog(endpoint.target.addr).await {
        true => Reason::FunctionFailed,
        false => Reason::InstanceDied,
    };
    PlatformError::new(COMPONENT, reason, text)
}

/// Returns whether the watchdog still listens. A dying instance closes its port first: the kernel
/// ends the other processes of a PID namespace after it has closed the files of the first
/// (`exit_files` before `zap_pid_ns_processes`).
async fn has_watchdog(addr: SocketAddr) -> bool {
    let connecting = tokio::time::timeout(WATCHDOG_TIMEOUT, TcpStream::connect(addr));
    connecting.await.is_ok_and(|connected| connected.is_ok())
}
