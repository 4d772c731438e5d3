//! One connection of a function, from its arrival to its end.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use nearpath_types::egress::{Protocol, Tls};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::Exit;
use super::async_writes::Carrier;
use super::forward::{carry, reset_at_close};
use crate::policy::Pass;
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::pool::{Lease, NoConnection};
use nearpath_connpool::tls;
use nearpath_connpool::upstream::Upstream;
use nearpath_dbproxy::{Visit, http, mysql, postgres, redis, tls_tunnel};

impl Exit {
    /// Serves a connection; ends it when its instance has ended.
    pub(super) async fn visit(self: Rc<Self>, client: TcpStream, pass: Pass) {
        let mut here = pass.here.clone();
        let to = Rc::clone(&pass.to);
        if pass.is_async() {
            return Box::pin(self.outlive(client, pass)).await;
        }
        let served = tokio::select! {
            biased;
            _ = here.changed() => return,
            served = self.serve(client, pass) => served,
        };
        if let Err(error) = served {
            tracing::debug!(to = to.key.to, %error, "a connection broke");
        }
    }

    /// By the protocol's adapter. A protocol that nobody here speaks is carried as it is, or through TLS. What is large has a place of its own: every other
    /// connection would be as large.
    async fn serve(&self, client: TcpStream, pass: Pass) -> io::Result<()> {
        match (pass.to.egress.protocol, &pass.to.egress.tls) {
            (Protocol::Http, _) => http::serve(client, self.visit_of(&pass)).await,
            (Protocol::Redis, _) => Box::pin(redis::serve(client, self.visit_of(&pass))).await,
            (Protocol::Postgres, _) => Box::pin(postgres::serve(client, self.visit_of(&pass))).await,
            (Protocol::Mysql, _) => Box::pin(mysql::serve(client, self.visit_of(&pass))).await,
            (Protocol::Tcp, Tls::Pass) => self.raw(&client, pass).await,
            (Protocol::Tcp, Tls::Originate { .. }) => Box::pin(self.encrypted(client, pass)).await,
        }
    }

    fn visit_of(&self, pass: &Pass) -> Visit {
        pass.waiting.end(); // how long it waits each time is up to the adapter
        Visit {
            caller: Rc::clone(&pass.caller.caller),
            upstream: Upstream {
                destination: Rc::clone(&pass.to),
                backends: Rc::clone(&pass.backends),
                rooms: Rc::clone(&self.keeper.rooms),
                ledger: self.keeper.ledger(&pass.to),
            },
            unwritten: Rc::clone(&self.unwritten),
            here: pass.is_async().then(|| pass.here.clone()),
        }
    }

    async fn raw(&self, client: &TcpStream, pass: Pass) -> io::Result<()> {
        let ledger = self.keeper.ledger(&pass.to);
        match self.lease(client, &pass).await {
            Some(Lease { stream, mut gone }) => {
                let carried = carry(client, &stream, &ledger).await;
                gone.look(&stream);
                carried
            }
            None => Ok(()),
        }
    }

    async fn encrypted(&self, client: TcpStream, pass: Pass) -> io::Result<()> {
        let served = tls_tunnel::serve(client, self.visit_of(&pass)).await;
        if let Err(error) = &served
            && let Some(why) = error.get_ref().and_then(|error| error.downcast_ref::<NoConnection>())
        {
            self.tell_refused(&pass, why);
        }
        served
    }

    /// A connection to the destination, unless there is none or the client has gone.
    async fn lease(&self, client: &TcpStream, pass: &Pass) -> Option<Lease> {
        let deadline = Instant::now() + pass.to.egress.wait;
        let found = tokio::select! {
            biased;
            _ = client.ready(Interest::ERROR) => return None,
            found = pass.backends.connect(&pass.to, deadline) => found,
        };
        pass.waiting.end();
        found.inspect_err(|why| self.turn_away(client, pass, why)).ok()
    }

    fn turn_away(&self, client: &TcpStream, pass: &Pass, why: &NoConnection) {
        reset_at_close(client);
        self.tell_refused(pass, why);
    }

    fn tell_refused(&self, pass: &Pass, why: &NoConnection) {
        let what = match why {
            NoConnection::Exhausted { .. } => format!("a connection was reset: {why}"),
            NoConnection::Refused { .. } => format!("a connection was reset: no connection to {why}"),
        };
        self.notice(&pass.caller.caller, &pass.to.key.to, &what);
    }
}

/// Connections whose writes are taken at once: they go on when their instance has ended.
impl Exit {
    async fn outlive(self: Rc<Self>, client: TcpStream, pass: Pass) {
        let to = Rc::clone(&pass.to);
        let (_stay, _delivery) = (self.keeper.stay(&to), self.unwritten.begin());
        let served = match to.egress.protocol {
            Protocol::Redis => {
                drop(pass.tail.take()); // what has no answer yet was not taken
                redis::serve(client, self.visit_of(&pass)).await
            }
            _ => self.deliver(&client, pass).await,
        };
        if let Err(error) = served {
            tracing::debug!(to = to.key.to, %error, "a connection broke");
        }
    }

    async fn deliver(&self, client: &TcpStream, pass: Pass) -> io::Result<()> {
        let (ledger, to, caller) = (self.keeper.ledger(&pass.to), &pass.to.key.to, &pass.caller.caller);
        if let Some(why) = self.unwritten.take(&caller.function, to) {
            Ledger::count(&ledger.told, 1);
            reset_at_close(client);
            self.notice(caller, to, &format!("a connection was reset: an earlier write failed: {why}"));
            return Ok(());
        }
        let connect = async {
            let lease = pass.backends.connect(&pass.to, Instant::now() + pass.to.egress.wait).await?;
            tls::on(lease, &pass.to, &self.keeper.rooms).await
        };
        let carrier = Carrier::new(client, &pass, &ledger);
        let Err(lost) = carrier.run(Box::pin(connect)).await else { return Ok(()) };
        reset_at_close(client);
        if lost.taken {
            Ledger::count(&ledger.lost, 1);
            self.unwritten.failed(caller, to, &lost.why);
        } else {
            self.notice(caller, to, &format!("a connection was reset: {}", lost.why));
        }
        if lost.taken && lost.gone {
            self.unwritten.owe(caller, to, &lost.why);
        }
        Ok(())
    }
}
