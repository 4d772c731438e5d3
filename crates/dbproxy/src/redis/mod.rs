//! Redis, Valkey and KeyDB: many short-lived functions share few connections.
//!
//! A client has a backend only while a reply is outstanding, or while the backend holds state of
//! the client: a transaction, a watch, a mode.
//!
//! Values are cached ([`cache`]) where the egress allows it, and writes are acknowledged early
//! ([`early_write`], [`pending_replies`]). [`command_effect`] lists which commands read and write
//! which keys.
//!
//! [`frame`] finds the ends of commands and replies, and [`session_effect`] lists what a command
//! changes on its connection. [`session`] is the state machine of one client. [`settings`] are the
//! parts of a connection that another one can repeat. [`backend`] sets up and cleans connections,
//! and [`relay`] moves the bytes.

mod attach;
pub mod backend;
pub mod cache;
pub mod command_effect;
mod early_write;
pub mod frame;
mod input;
mod pending_replies;
mod prefetch;
mod prefetched;
mod relay;
pub mod session;
pub mod session_effect;
pub mod settings;
mod state;

use std::io;

use nearpath_types::egress::EgressProtocol;
use tokio::net::TcpStream;

use crate::ClientContext;
use crate::adapter::{Adapter, ClientService};

/// The adapter of Redis's RESP.
#[derive(Debug)]
pub struct RedisAdapter;

impl Adapter for RedisAdapter {
    fn protocol(&self) -> EgressProtocol {
        EgressProtocol::Redis
    }

    fn serve(&self, client: TcpStream, context: ClientContext) -> ClientService {
        Box::pin(serve(client, context))
    }

    fn prefetch_reads(&self, context: &ClientContext) {
        prefetch::prefetch_reads(context);
    }
}

async fn serve(client: TcpStream, context: ClientContext) -> io::Result<()> {
    let state = state::state_of(&context);
    let mut relay = relay::RedisRelay::new(client, context, state);
    let served = relay.run().await;
    // Runs after errors as well: a backend that is in order is cleaned and returned even when the
    // client failed.
    relay.finish().await;
    served
}
