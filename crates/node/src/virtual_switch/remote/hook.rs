//! Opens streams to other nodes, over connections that are made elsewhere.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_types::{FunctionPolicy, NodeName, NodeStreamRequest};
use tokio::io::{AsyncRead, AsyncWrite};

/// Any failure, with its text for the log.
pub type StreamFailure = Box<dyn Error + Send + Sync>;

/// Stream of bytes between two nodes. A truncated one ends with an error.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Stream to a function on another node.
pub struct RemoteStream {
    /// Node of the function.
    pub node: NodeName,
    /// The bytes.
    pub stream: Box<dyn ByteStream>,
    /// Ends when the node is not reachable any more.
    pub lost: BoxFuture<'static, ()>,
}

type OpenedStream = BoxFuture<'static, Result<RemoteStream, StreamFailure>>;

/// Opens streams to functions that run on other nodes only.
#[derive(Clone)]
pub struct StreamHook(
    Arc<dyn Fn(NodeStreamRequest, Arc<FunctionPolicy>) -> OpenedStream + Send + Sync>,
);

impl StreamHook {
    /// Calls `hook` with each request, and the policy of its callee. Its future must end some seconds after
    /// the callee's cold timeout.
    pub fn from_hook(
        hook: impl Fn(NodeStreamRequest, Arc<FunctionPolicy>) -> OpenedStream + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(hook))
    }

    /// Opens a stream.
    pub(crate) fn open_stream(
        &self,
        request: NodeStreamRequest,
        policy: Arc<FunctionPolicy>,
    ) -> OpenedStream {
        (self.0)(request, policy)
    }
}

impl Default for StreamHook {
    /// Opens none.
    fn default() -> Self {
        Self::from_hook(|_, _| {
            let error: StreamFailure = "it does not run on this node, which knows no others".into();
            std::future::ready(Err(error)).boxed()
        })
    }
}

impl fmt::Debug for StreamHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamHook")
    }
}
