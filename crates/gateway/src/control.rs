//! Interface between the gateway and the rest of the program.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use nearpath_types::chain_status::DirectCallCounts;
use nearpath_types::{FunctionId, InnerListener, NodeName, PlatformError, Reason};
use nearpath_wire::Body;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{COMPONENT, error_response};

/// Operations that the gateway needs from the rest of the program.
pub trait GatewayControl: Send + Sync + 'static {
    /// Starts a function without a ready instance because a request waits for it. Called from
    /// serving threads, about once a second per function. Must not block.
    fn wake_function(&self, function: &FunctionId);
    /// Notes a call of a function whose egress declares reads (`prefetch`). Called from serving
    /// threads before the call is sent. Must not block.
    fn note_call(&self, _function: &FunctionId) {}
    /// Answers the administrative paths: `/system/…`, `/ui…`, `/`, `/async-function/…`.
    fn handle_admin(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>>;
    /// Opens a non-blocking TCP socket in the machine's network namespace.
    ///
    /// # Errors
    /// Fails when the namespace cannot be entered.
    fn open_machine_socket(&self, is_ipv6: bool) -> io::Result<OwnedFd> {
        let family = match is_ipv6 {
            true => AddressFamily::INET6,
            false => AddressFamily::INET,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Ok(socket_with(family, SocketType::STREAM, flags, None)?)
    }
    /// Answers another node's requests that call no function: `/node/…`.
    fn handle_node(
        &self,
        _node: &NodeName,
        request: Request<Body>,
    ) -> BoxFuture<'static, NodeResponse> {
        let json = error_response::wants_json(&request);
        let error = PlatformError::new(
            COMPONENT,
            Reason::NoFunction,
            "this node has no such service",
        );
        let response = error_response::render_error(&error, json);
        Box::pin(std::future::ready(response.into()))
    }
    /// Returns the calls of a function through shared memory that bypassed the gateway; for
    /// metrics.
    fn near_calls(&self, _: &FunctionId) -> DirectCallCounts {
        DirectCallCounts::default()
    }
    /// Returns the name with this virtual address, also of a declared callee that is not deployed; for
    /// errors.
    fn function_at(&self, _: Ipv4Addr) -> Option<FunctionId> {
        None
    }
    /// Sets whether the calling thread runs as a batch, which preempts no other thread
    /// (`SCHED_BATCH`, sched(7)). Only speed depends on it.
    fn set_batch_policy(&self, _is_batch: bool) {}
    /// Gives the calling thread, which a serving thread has started, the ordinary policy and all
    /// processors: it inherits both.
    fn prepare_disk_thread(&self) {}
    /// Returns a stream of sockets, one per security domain of the node, including later domains.
    /// `None` without a node in this process: every call then uses HTTP.
    fn domain_sockets(&self) -> Option<UnboundedReceiver<OwnedFd>> {
        None
    }
    /// Returns a stream of listeners inside instances, which the calling thread serves. `None`
    /// without a node in this process.
    fn inner_listeners(&self) -> Option<UnboundedReceiver<InnerListener>> {
        None
    }
}

/// Connection of another node after its upgrade.
pub type UpgradedStream = TokioIo<Upgraded>;

/// Serves a connection after its upgrade, on the thread that has accepted it.
pub type UpgradeTask = Box<dyn FnOnce(UpgradedStream) -> BoxFuture<'static, ()> + Send>;

/// Response to another node's request that calls no function.
pub struct NodeResponse {
    /// The response.
    pub response: Response<Body>,
    /// Task that serves the connection after a response with status 101.
    pub upgrade: Option<UpgradeTask>,
}

impl From<Response<Body>> for NodeResponse {
    fn from(response: Response<Body>) -> Self {
        Self {
            response,
            upgrade: None,
        }
    }
}

/// A control for a standalone gateway: wakes no function and has no administrative paths.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoControl;

impl GatewayControl for NoControl {
    fn wake_function(&self, _: &FunctionId) {}

    fn handle_admin(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let error = PlatformError::new(
            COMPONENT,
            Reason::NoFunction,
            "this gateway has no administrative paths",
        );
        let response = error_response::render_error(&error, error_response::wants_json(&request));
        Box::pin(std::future::ready(response))
    }
}
