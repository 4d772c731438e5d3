//! Queries of other nodes: one request on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use nearpath_types::NodeName;
use tokio::sync::watch;
use tokio::time::timeout;

use super::dialer::NodeDialer;
use super::http_connection::{HttpConnection, PeerTarget, RequestError};
use crate::peer_states::{PeerAvailability, PeerStates};
use crate::protocol::{LineBuffer, LineTooLong};

/// Time for a query, and for the head of a stream. People wait for it.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes of a reply: that of a node with 100,000 functions has a third of it.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Client for queries of the nodes that are up, and for streams to their functions.
#[derive(Clone)]
pub struct PeerClient {
    pub(super) dialer: Arc<dyn NodeDialer>,
    pub(super) states: watch::Receiver<Arc<PeerStates>>,
}

/// Failure of a query.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The list has no such node.
    #[error("it is no node of the list")]
    UnknownNode,
    /// The node is not up; the text is the cause.
    #[error("{0}")]
    NotUp(Arc<str>),
    /// The node took too long.
    #[error("no answer within {QUERY_TIMEOUT:?}")]
    Timeout,
    /// The node has no such query.
    #[error("its release does not know this query")]
    UnknownQuery,
    /// No connection, or no valid response; the text is the cause.
    #[error("{0}")]
    Request(String),
    /// A reply beyond the limit.
    #[error("its reply has more than {MAX_REPLY_BYTES} bytes")]
    TooLarge,
    /// The connection broke before the end.
    #[error("its reply broke off: {0}")]
    Broken(hyper::Error),
    /// A line beyond the limit.
    #[error(transparent)]
    Line(#[from] LineTooLong),
}

impl From<RequestError> for QueryError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Status(StatusCode::NOT_FOUND) => Self::UnknownQuery,
            error => Self::Request(error.to_string()),
        }
    }
}

impl PeerClient {
    /// Creates a client of the nodes in `states`.
    pub fn new(dialer: Arc<dyn NodeDialer>, states: watch::Receiver<Arc<PeerStates>>) -> Self {
        Self { dialer, states }
    }

    /// Reads the whole response to `GET path`.
    ///
    /// # Errors
    /// When the node is not up, or does not answer with success within [`QUERY_TIMEOUT`].
    pub async fn fetch(&self, node: &NodeName, path: &str) -> Result<Bytes, QueryError> {
        let fetched = timeout(QUERY_TIMEOUT, async {
            let (_connection, body) = self.open(node, path).await?;
            let collected = Limited::new(body, MAX_REPLY_BYTES).collect().await;
            match collected {
                Ok(body) => Ok(body.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => Err(QueryError::TooLarge),
                Err(error) => Err(QueryError::Request(error.to_string())),
            }
        });
        fetched.await.unwrap_or(Err(QueryError::Timeout))
    }

    /// Opens the response to `GET path` as a stream of lines, which may last for days.
    ///
    /// # Errors
    /// When the node is not up, or sends no head of success within [`QUERY_TIMEOUT`].
    pub async fn stream(&self, node: &NodeName, path: &str) -> Result<PeerLines, QueryError> {
        let opened = timeout(QUERY_TIMEOUT, self.open(node, path)).await;
        let (connection, body) = opened.unwrap_or(Err(QueryError::Timeout))?;
        Ok(PeerLines {
            node: node.clone(),
            states: self.states.clone(),
            body,
            lines: LineBuffer::default(),
            _connection: connection,
        })
    }

    /// Waits until queries may go to the node; never ends without it.
    pub async fn wait_up(&self, node: &NodeName) {
        let is_up = |states: &Arc<PeerStates>| down_cause(states, node).is_ok();
        if self.states.clone().wait_for(is_up).await.is_err() {
            // This process ends.
            std::future::pending::<()>().await;
        }
    }

    async fn open(
        &self,
        node: &NodeName,
        path: &str,
    ) -> Result<(HttpConnection, Incoming), QueryError> {
        let target = self.target_of(node)?;
        let mut connection = HttpConnection::open(&target).await?;
        let response = connection.get(path).await?;
        Ok((connection, response.into_body()))
    }

    fn target_of(&self, node: &NodeName) -> Result<PeerTarget, QueryError> {
        let states = self.states.borrow().clone();
        down_cause(&states, node)?;
        let status = states.peers.get(node).ok_or(QueryError::UnknownNode)?;
        // A node that is reachable was connected.
        let peer = status.node.as_ref().ok_or(QueryError::UnknownNode)?;
        Ok(PeerTarget {
            node: node.clone(),
            addr: peer.addr,
            dialer: self.dialer.clone(),
        })
    }
}

/// Lines of a response.
pub struct PeerLines {
    node: NodeName,
    states: watch::Receiver<Arc<PeerStates>>,
    body: Incoming,
    lines: LineBuffer,
    _connection: HttpConnection,
}

impl PeerLines {
    /// Returns the next line; `None`: the stream has ended. Cancel safe.
    ///
    /// # Errors
    /// When the connection breaks, or the node goes down: a quiet stream would not show it.
    pub async fn next_line(&mut self) -> Result<Option<Bytes>, QueryError> {
        loop {
            if let Some(line) = self.lines.take_line()? {
                return Ok(Some(line));
            }
            let node = &self.node;
            let went_down = self
                .states
                .wait_for(|states| down_cause(states, node).is_err());
            tokio::select! {
                biased;
                frame = self.body.frame() => match frame {
                    None => return Ok(None),
                    Some(frame) => {
                        if let Some(bytes) = frame.map_err(QueryError::Broken)?.data_ref() {
                            self.lines.push(bytes);
                        }
                    }
                },
                states = went_down => {
                    let states = states.map(|states| states.clone()).unwrap_or_default();
                    return down_cause(&states, &self.node).map(|()| None);
                }
            }
        }
    }
}

/// Returns the cause for which no queries go to a node.
fn down_cause(states: &PeerStates, node: &NodeName) -> Result<(), QueryError> {
    let status = states.peers.get(node).ok_or(QueryError::UnknownNode)?;
    match &status.availability {
        PeerAvailability::Up | PeerAvailability::HeldDown { .. } => Ok(()),
        PeerAvailability::Connecting => Err(QueryError::NotUp("no connection yet".into())),
        PeerAvailability::Down { cause } => Err(QueryError::NotUp(cause.clone())),
    }
}
