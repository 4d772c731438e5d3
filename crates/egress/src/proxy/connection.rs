//! One connection of a function, from its arrival to its end.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use nearpath_types::egress::{EgressProtocol, EgressTls};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::EgressProxy;
use super::async_writes::WriteForwarder;
use super::forward::{forward_both_ways, reset_at_close};
use crate::policy::ConnectionPermit;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::pool::{ConnectionLease, NoConnection};
use nearpath_connpool::tls;
use nearpath_connpool::upstream::UpstreamHandle;
use nearpath_dbproxy::{ClientContext, http, mysql, postgres, redis, tls_tunnel};

impl EgressProxy {
    /// Serves a connection; ends it when its instance has ended.
    pub(super) async fn serve_connection(
        self: Rc<Self>,
        client: TcpStream,
        pass: ConnectionPermit,
    ) {
        let mut here = pass.alive.clone();
        let to = Rc::clone(&pass.destination);
        if pass.has_async_writes() {
            return Box::pin(self.serve_async_writes(client, pass)).await;
        }
        let served = tokio::select! {
            biased;
            _ = here.changed() => return,
            served = self.serve_protocol(client, pass) => served,
        };
        if let Err(error) = served {
            tracing::debug!(to = to.key.host_port, %error, "a connection broke");
        }
    }

    /// By the protocol's adapter. A protocol that nobody here speaks is carried as it is, or through TLS. What is large has a place of its own: every other
    /// connection would be as large.
    async fn serve_protocol(&self, client: TcpStream, pass: ConnectionPermit) -> io::Result<()> {
        match (
            pass.destination.egress.protocol,
            &pass.destination.egress.tls,
        ) {
            (EgressProtocol::Http, _) => http::serve(client, self.client_context(&pass)).await,
            (EgressProtocol::Redis, _) => {
                Box::pin(redis::serve(client, self.client_context(&pass))).await
            }
            (EgressProtocol::Postgres, _) => {
                Box::pin(postgres::serve(client, self.client_context(&pass))).await
            }
            (EgressProtocol::Mysql, _) => {
                Box::pin(mysql::serve(client, self.client_context(&pass))).await
            }
            (EgressProtocol::Tcp, EgressTls::Pass) => self.forward_raw(&client, pass).await,
            (EgressProtocol::Tcp, EgressTls::Originate { .. }) => {
                Box::pin(self.forward_tls(client, pass)).await
            }
        }
    }

    fn client_context(&self, pass: &ConnectionPermit) -> ClientContext {
        pass.waiting_guard.release_count(); // how long it waits each time is up to the adapter
        ClientContext {
            caller: Rc::clone(&pass.instance.caller),
            upstream: UpstreamHandle {
                destination: Rc::clone(&pass.destination),
                source: Rc::clone(&pass.source),
                adapters: Rc::clone(&self.pool.adapters),
                counters: self.pool.counters_for(&pass.destination),
            },
            failed_writes: Rc::clone(&self.failed_writes),
            instance_alive: pass.has_async_writes().then(|| pass.alive.clone()),
        }
    }

    async fn forward_raw(&self, client: &TcpStream, pass: ConnectionPermit) -> io::Result<()> {
        let ledger = self.pool.counters_for(&pass.destination);
        match self.connect_destination(client, &pass).await {
            Some(ConnectionLease {
                stream,
                guard: mut gone,
            }) => {
                let carried = forward_both_ways(client, &stream, &ledger).await;
                gone.sample_flow(&stream);
                carried
            }
            None => Ok(()),
        }
    }

    async fn forward_tls(&self, client: TcpStream, pass: ConnectionPermit) -> io::Result<()> {
        let served = tls_tunnel::serve(client, self.client_context(&pass)).await;
        if let Err(error) = &served
            && let Some(why) = error
                .get_ref()
                .and_then(|error| error.downcast_ref::<NoConnection>())
        {
            self.notify_refused(&pass, why);
        }
        served
    }

    /// A connection to the destination, unless there is none or the client has gone.
    async fn connect_destination(
        &self,
        client: &TcpStream,
        pass: &ConnectionPermit,
    ) -> Option<ConnectionLease> {
        let deadline = Instant::now() + pass.destination.egress.wait;
        let found = tokio::select! {
            biased;
            _ = client.ready(Interest::ERROR) => return None,
            found = pass.source.connect(&pass.destination, deadline) => found,
        };
        pass.waiting_guard.release_count();
        found
            .inspect_err(|why| self.reset_refused(client, pass, why))
            .ok()
    }

    fn reset_refused(&self, client: &TcpStream, pass: &ConnectionPermit, why: &NoConnection) {
        reset_at_close(client);
        self.notify_refused(pass, why);
    }

    fn notify_refused(&self, pass: &ConnectionPermit, why: &NoConnection) {
        let what = match why {
            NoConnection::Exhausted { .. } => format!("a connection was reset: {why}"),
            NoConnection::Refused { .. } => {
                format!("a connection was reset: no connection to {why}")
            }
        };
        self.notify_tenant(
            &pass.instance.caller,
            &pass.destination.key.host_port,
            &what,
        );
    }
}

/// Connections whose writes are taken at once: they go on when their instance has ended.
impl EgressProxy {
    async fn serve_async_writes(self: Rc<Self>, client: TcpStream, pass: ConnectionPermit) {
        let to = Rc::clone(&pass.destination);
        let (_stay, _delivery) = (
            self.pool.reserve_key(&to),
            self.failed_writes.begin_delivery(),
        );
        let served = match to.egress.protocol {
            EgressProtocol::Redis => {
                drop(pass.writes_expected.take()); // what has no answer yet was not taken
                redis::serve(client, self.client_context(&pass)).await
            }
            _ => self.deliver_writes(&client, pass).await,
        };
        if let Err(error) = served {
            tracing::debug!(to = to.key.host_port, %error, "a connection broke");
        }
    }

    async fn deliver_writes(&self, client: &TcpStream, pass: ConnectionPermit) -> io::Result<()> {
        let (ledger, to, caller) = (
            self.pool.counters_for(&pass.destination),
            &pass.destination.key.host_port,
            &pass.instance.caller,
        );
        if let Some(why) = self.failed_writes.take_failure(&caller.function, to) {
            DestinationCounters::increase(&ledger.reported_failures, 1);
            reset_at_close(client);
            self.notify_tenant(
                caller,
                to,
                &format!("a connection was reset: an earlier write failed: {why}"),
            );
            return Ok(());
        }
        let connect = async {
            let lease = pass
                .source
                .connect(
                    &pass.destination,
                    Instant::now() + pass.destination.egress.wait,
                )
                .await?;
            tls::wrap_lease(lease, &pass.destination, &self.pool.adapters).await
        };
        let carrier = WriteForwarder::new(client, &pass, &ledger);
        let Err(lost) = carrier.run(Box::pin(connect)).await else {
            return Ok(());
        };
        reset_at_close(client);
        if lost.was_accepted {
            DestinationCounters::increase(&ledger.failed_writes, 1);
            self.failed_writes.log_failure(caller, to, &lost.reason);
        } else {
            self.notify_tenant(
                caller,
                to,
                &format!("a connection was reset: {}", lost.reason),
            );
        }
        if lost.was_accepted && lost.client_gone {
            self.failed_writes.report_later(caller, to, &lost.reason);
        }
        Ok(())
    }
}
