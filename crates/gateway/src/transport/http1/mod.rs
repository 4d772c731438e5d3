//! HTTP/1.1 to a function's own server, over connections that are made inside its network namespace
//! (decision 89), and to other nodes over TLS (decision 106).
//!
//! A function's server is the tenant's code, and may be hostile. [`response_head`] and [`body_decoder`] are
//! pure and strict: what is not clearly framed ends the connection. A connection is used again only
//! when its response ended where its framing says, and nothing followed.

mod body_decoder;
mod connection;
mod exchange;
mod idle_limit;
mod node_connections;
mod node_pool;
mod oom_kills;
mod pooled_connection;
mod pools;
mod response_body;
mod response_head;
mod server_pool;
mod server_socket;
mod unanswered;

pub(crate) use connection::ResponseHeadError;
pub(crate) use exchange::{Arrived, Exchange, ExchangeError, ServerBody, ServerResponse};
pub(crate) use node_connections::NodeConnections;
pub(crate) use pooled_connection::PooledConnection;
pub(crate) use pools::LoopbackPools;
pub(crate) use response_body::Http1Body;
pub(crate) use response_head::InvalidResponse;

#[doc(hidden)] // for the fuzz target
pub use body_decoder::{BodyDecoder, DecodedPart};
#[doc(hidden)]
pub use response_head::{HeadParser, ResponseHead};
