//! One connection of a function, from its arrival to its end.

use std::rc::Rc;
use std::time::Instant;

use nearpath_types::egress::Tls;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::Exit;
use super::carry::{carry, reset_at_close};
use super::guests::Pass;
use crate::keeper::{Lease, NoConnection};
use crate::ledger::Ledger;

impl Exit {
    /// Serves a connection; ends it when its instance has ended.
    pub(super) async fn visit(self: Rc<Self>, client: TcpStream, pass: Pass) {
        let mut here = pass.here.clone();
        let _ = client.set_nodelay(true); // it is in the same kernel; a failure costs time alone
        tokio::select! {
            biased;
            _ = here.changed() => reset_at_close(&client),
            () = self.serve(&client, pass) => {}
        }
    }

    /// Protocols without an adapter are carried as they are.
    async fn serve(&self, client: &TcpStream, pass: Pass) {
        match pass.to.egress.tls {
            Tls::Pass => self.raw(client, pass).await,
            Tls::Originate { .. } => {
                let to = &pass.to.key.to;
                reset_at_close(client); // what is to be encrypted never goes out in clear
                self.notice(
                    &pass.caller,
                    to,
                    &format!(
                        "a connection to {to} was reset: this node does not speak TLS for functions (`tls=originate`)"
                    ),
                );
            }
        }
    }

    async fn raw(&self, client: &TcpStream, pass: Pass) {
        let Pass { caller, to, waiting, .. } = &pass;
        let ledger = self.keeper.ledger(&to.key);
        let deadline = Instant::now() + to.egress.wait;
        let found = tokio::select! {
            biased;
            _ = client.ready(Interest::ERROR) => return,
            found = pass.backends.connect(to, deadline) => found,
        };
        let _ = waiting;
        match found {
            Ok(lease) => self.carry(client, lease, pass, &ledger).await,
            Err(why) => {
                Ledger::count(&ledger.refused, 1);
                reset_at_close(client);
                self.notice(caller, &to.key.to, &refused(&why));
            }
        }
    }

    async fn carry(&self, client: &TcpStream, lease: Lease, pass: Pass, ledger: &Ledger) {
        let Pass { waiting, caller: _caller, to, .. } = pass;
        drop(waiting);
        if let Err(error) = carry(client, &lease.stream, ledger).await {
            tracing::debug!(to = to.key.to, %error, "a connection was reset");
        }
    }
}

fn refused(why: &NoConnection) -> String {
    match why {
        NoConnection::Exhausted { .. } => format!("a connection was reset: {why}"),
        NoConnection::Refused { .. } => format!("a connection was reset: no connection to {why}"),
    }
}
