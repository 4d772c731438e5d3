//! The gateway's view of the rest of the program.

use std::os::fd::OwnedFd;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use nearpath_types::chain_status::DirectCallCounts;
use nearpath_types::{FunctionId, PlatformError, Reason};
use nearpath_wire::Body;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{COMPONENT, error_response};

/// What the gateway asks of the rest of the program.
pub trait GatewayControl: Send + Sync + 'static {
    /// A request waits for a function that has no ready instance. Called from serving threads, about once a second for
    /// a function; must not block.
    fn wake_function(&self, function: &FunctionId);
    /// A call has arrived, of a function whose egress declares reads (`prefetch`). Called from serving threads, before the call goes on; must not block.
    fn note_call(&self, _function: &FunctionId) {}
    /// Answers the administrator's paths: `/system/…`, `/ui…`, `/`, `/async-function/…`.
    fn handle_admin(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>>;
    /// How often a function was called by others through shared memory, past the gateway: for metrics.
    fn near_calls(&self, _: &FunctionId) -> DirectCallCounts {
        DirectCallCounts::default()
    }
    /// A serving thread wants to join the node's security domains: a socket for each, those to come as well. `NoConnection`: there
    /// is no node in this process, and every call goes over HTTP.
    fn domain_sockets(&self) -> Option<UnboundedReceiver<OwnedFd>> {
        None
    }
}

/// For a gateway on its own: nothing can be woken and there is no administrator's side.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoControl;

impl GatewayControl for NoControl {
    fn wake_function(&self, _: &FunctionId) {}

    fn handle_admin(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let error = PlatformError::new(
            COMPONENT,
            Reason::NoFunction,
            "this gateway has no administrator's side",
        );
        let response = error_response::render_error(&error, error_response::wants_json(&request));
        Box::pin(std::future::ready(response))
    }
}
