//! A connection of a function, from accept to close.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use nearpath_types::egress::EgressTls;
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
use nearpath_dbproxy::{ClientContext, adapter_of, tls_tunnel};

impl EgressProxy {
    /// Serves a connection, and ends it when its instance has ended.
    pub(super) async fn serve_connection(
        self: Rc<Self>,
        client: TcpStream,
        permit: ConnectionPermit,
    ) {
        let mut alive = permit.alive.clone();
        let to = Rc::clone(&permit.destination);
        // Async writes outlive the instance, so they must not be cancelled with it.
        if permit.has_async_writes() {
            return Box::pin(self.serve_async_writes(client, permit)).await;
        }
        // The end of the instance wins over more bytes.
        let served = tokio::select! {
            biased;
            _ = alive.changed() => return,
            served = self.serve_protocol(client, permit) => served,
        };
        if let Err(error) = served {
            tracing::debug!(to = to.key.host_port, %error, "egress proxy: connection failed");
        }
    }

    /// Serves it with the protocol's adapter, or carries raw bytes, plain or through TLS.
    async fn serve_protocol(&self, client: TcpStream, permit: ConnectionPermit) -> io::Result<()> {
        let egress = &permit.destination.egress;
        match (adapter_of(egress.protocol), &egress.tls) {
            (Some(adapter), _) => adapter.serve(client, self.client_context(&permit)).await,
            (None, EgressTls::Pass) => self.forward_raw(&client, permit).await,
            (None, EgressTls::Originate { .. }) => {
                // Boxed: otherwise every connection would be as large.
                Box::pin(self.forward_tls(client, permit)).await
            }
        }
    }

    fn client_context(&self, permit: &ConnectionPermit) -> ClientContext {
        // The adapter bounds its own waits.
        permit.waiting_guard.release_count();
        ClientContext {
            caller: Rc::clone(&permit.instance.caller),
            upstream: UpstreamHandle {
                destination: Rc::clone(&permit.destination),
                source: Rc::clone(&permit.source),
                adapters: Rc::clone(&self.pool.adapters),
                counters: self.pool.counters_for(&permit.destination),
            },
            logger: Rc::clone(&self.logger),
            failed_writes: Rc::clone(&self.failed_writes),
            tls_acceptors: Rc::clone(&self.tls_acceptors),
            instance_alive: permit.has_async_writes().then(|| permit.alive.clone()),
        }
    }

    async fn forward_raw(&self, client: &TcpStream, permit: ConnectionPermit) -> io::Result<()> {
        let counters = self.pool.counters_for(&permit.destination);
        match self.connect_destination(client, &permit).await {
            Some(ConnectionLease { stream, mut guard }) => {
                let forwarded = forward_both_ways(client, &stream, &counters).await;
                // After use, when the flow shows what the path carried.
                guard.sample_flow(&stream);
                forwarded
            }
            None => Ok(()),
        }
    }

    async fn forward_tls(&self, client: TcpStream, permit: ConnectionPermit) -> io::Result<()> {
        let served = tls_tunnel::serve(client, self.client_context(&permit)).await;
        if let Err(error) = &served
            && let Some(why) = error
                .get_ref()
                .and_then(|error| error.downcast_ref::<NoConnection>())
        {
            self.notify_refused(&permit, why);
        }
        served
    }

    /// Returns a connection to the destination, unless there is none or the client has gone.
    async fn connect_destination(
        &self,
        client: &TcpStream,
        permit: &ConnectionPermit,
    ) -> Option<ConnectionLease> {
        let deadline = Instant::now() + permit.destination.egress.wait;
        let found = tokio::select! {
            biased;
            // Only a reset ends the wait: a half-closed client may still expect an answer.
            _ = client.ready(Interest::ERROR) => return None,
            found = permit.source.connect(&permit.destination, deadline) => found,
        };
        permit.waiting_guard.release_count();
        found
            .inspect_err(|why| self.reset_refused(client, permit, why))
            .ok()
    }

    fn reset_refused(&self, client: &TcpStream, permit: &ConnectionPermit, why: &NoConnection) {
        reset_at_close(client);
        self.notify_refused(permit, why);
    }

    fn notify_refused(&self, permit: &ConnectionPermit, why: &NoConnection) {
        let what = match why {
            NoConnection::Exhausted { .. } => format!("connection reset: {why}"),
            NoConnection::Refused { .. } => {
                format!("connection reset: no connection to {why}")
            }
        };
        self.notify_tenant(
            &permit.instance.caller,
            &permit.destination.key.host_port,
            &what,
        );
    }
}

/// Connections with async writes, which outlive their instance.
impl EgressProxy {
    async fn serve_async_writes(self: Rc<Self>, client: TcpStream, permit: ConnectionPermit) {
        let to = Rc::clone(&permit.destination);
        // Held until everything is delivered: the key stays declared, and a draining node waits.
        let (_reservation, _delivery) = (
            self.pool.reserve_key(&to),
            self.failed_writes.begin_delivery(),
        );
        let served = match adapter_of(to.egress.protocol) {
            Some(adapter) => {
                // A request without an answer was not accepted, so none outlives the instance.
                drop(permit.writes_expected.take());
                adapter.serve(client, self.client_context(&permit)).await
            }
            None => self.deliver_writes(&client, permit).await,
        };
        if let Err(error) = served {
            tracing::debug!(to = to.key.host_port, %error, "egress proxy: connection failed");
        }
    }

    async fn deliver_writes(&self, client: &TcpStream, permit: ConnectionPermit) -> io::Result<()> {
        let (counters, to, caller) = (
            self.pool.counters_for(&permit.destination),
            &permit.destination.key.host_port,
            &permit.instance.caller,
        );
        // An earlier failure first: a reset is the only signal that an unknown protocol has.
        if let Some(why) = self.failed_writes.take_failure(&caller.function, to) {
            DestinationCounters::increase(&counters.reported_failures, 1);
            reset_at_close(client);
            self.notify_tenant(
                caller,
                to,
                &format!("connection reset: an earlier write failed: {why}"),
            );
            return Ok(());
        }
        let connect = async {
            let lease = permit
                .source
                .connect(
                    &permit.destination,
                    Instant::now() + permit.destination.egress.wait,
                )
                .await?;
            tls::wrap_lease(lease, &permit.destination, &self.pool.adapters).await
        };
        let forwarder = WriteForwarder::new(client, &permit, &counters);
        let Err(failure) = forwarder.run(Box::pin(connect)).await else {
            return Ok(());
        };
        reset_at_close(client);
        // The function takes these bytes for written, so the loss is counted and logged.
        if failure.was_accepted {
            DestinationCounters::increase(&counters.failed_writes, 1);
            self.failed_writes.log_failure(caller, to, &failure.reason);
        } else {
            self.notify_tenant(caller, to, &format!("connection reset: {}", failure.reason));
        }
        // No client saw the failure, so the function's next connection reports it.
        if failure.was_accepted && failure.client_gone {
            self.failed_writes.report_later(caller, to, &failure.reason);
        }
        Ok(())
    }
}
