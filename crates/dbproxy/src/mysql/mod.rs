//! MySQL and MariaDB: a client keeps its backend until it leaves; then the backend is cleaned and
//! serves the next client.
//!
//! In mode `transaction` the backend is released earlier: when the server reports that no
//! transaction is open, and [`session_effect`] knows that nothing of the client is left in it.
//!
//! If the node logs in (`user=`), the adapter greets a client at once with the server's last
//! greeting. The client gets a backend at its first command. Otherwise the server itself asks each
//! client for its password, on an existing connection with `COM_CHANGE_USER`.
//!
//! [`frame`] finds the ends of packets, [`startup`] parses and encodes the packets of the
//! connection phase. [`session`] is the state machine of one client, [`backend`] logs in and
//! cleans, [`relay`] moves the bytes, and [`change_user`] logs in anew for a client.

mod backend;
mod change_user;
mod connection;
pub mod frame;
mod handshake;
mod relay;
pub mod session;
pub mod session_effect;
pub mod startup;
mod state;

use std::io;

use nearpath_types::egress::EgressProtocol;
use tokio::net::TcpStream;

use crate::ClientContext;
use crate::adapter::{Adapter, ClientService};

/// The adapter of MySQL's and MariaDB's protocol.
#[derive(Debug)]
pub struct MysqlAdapter;

impl Adapter for MysqlAdapter {
    fn protocol(&self) -> EgressProtocol {
        EgressProtocol::Mysql
    }

    fn serve(&self, client: TcpStream, context: ClientContext) -> ClientService {
        Box::pin(serve(client, context))
    }
}

async fn serve(mut client: TcpStream, context: ClientContext) -> io::Result<()> {
    let state = state::state_of(&context);
    let Some(client_state) = handshake::accept_client(&mut client, &context, &state).await? else {
        return Ok(());
    };
    let mut relay = relay::MysqlRelay::new(client, context, state, client_state);
    let served = relay.run().await;
    // Runs after errors as well: a backend that is in order is cleaned and returned even when the
    // client failed.
    relay.finish().await;
    served
}
