//! The gateway as the rest of the program holds it.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use http::HeaderValue;
use nearpath_daemon::drain;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::{FunctionId, RoutingSnapshot};
use nearpath_wire::quic::CallerConfig;
use tokio::sync::watch;

use crate::GatewaySettings;
use crate::context::GatewayState;
use crate::control::GatewayControl;
use crate::function::RoutingTable;
use crate::invoke::{FunctionTable, LocalService};
use crate::listen::{self, GatewayListener, ListenPort, ThreadSetup, http3};
use crate::record::{AccessLog, GatewayMetrics, GatewayTotals};

/// A handle on the gateway; clones are the same gateway.
#[derive(Clone)]
pub struct Gateway {
    settings: Arc<GatewaySettings>,
    shared: Arc<GatewayState>,
    services: Vec<Arc<dyn LocalService>>,
}

/// The serving threads.
#[must_use = "without joining it, nobody knows when the drain is over"]
pub struct ServingThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// Kept open until all threads have ended: when one of several goes, the kernel numbers the others anew, and packets would go astray.
    _steered_sockets: Vec<UdpSocket>,
}

impl ServingThreads {
    /// Waits, blocking, until every thread has ended: after the drain.
    ///
    /// # Errors
    /// When a thread could not serve, or panicked.
    pub fn join_all(self) -> io::Result<()> {
        let ends = self.threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("it panicked")))
        });
        ends.collect()
    }
}

impl Gateway {
    /// A gateway that knows no function yet. Its metrics go to `registry`.
    pub fn new(
        settings: GatewaySettings,
        control: Arc<dyn GatewayControl>,
        registry: &MetricsRegistry,
    ) -> Self {
        let (table, totals) = (
            Arc::<RoutingTable>::default(),
            Arc::<GatewayTotals>::default(),
        );
        let metrics = GatewayMetrics {
            table: table.clone(),
            totals: totals.clone(),
            control: Arc::downgrade(&control),
        };
        registry.with(|registry| registry.register_collector(Box::new(metrics)));
        let served_by =
            HeaderValue::from_str(&settings.name).unwrap_or(HeaderValue::from_static("nearpath"));
        let shared = Arc::new(GatewayState {
            table,
            control,
            totals,
            log: None,
            served_by,
            caller: None,
        });
        Self {
            settings: settings.into(),
            shared,
            services: Vec::new(),
        }
    }

    /// The same gateway with an access log: one JSON line a request, see [`crate::write_record::Line`]. To be called before
    /// [`Gateway::serve`].
    ///
    /// # Errors
    /// When the log's thread cannot be started.
    pub fn with_access_log(self, out: Box<dyn io::Write + Send>) -> io::Result<Self> {
        let log = AccessLog::start_writer(out, self.shared.totals.clone())?;
        let shared = GatewayState {
            log: Some(log),
            ..(*self.shared).clone()
        };
        Ok(Self {
            shared: shared.into(),
            ..self
        })
    }

    /// The same gateway with a certificate, by which it calls instances over QUIC that have one. It follows what the channel says. To be
    /// called before [`Gateway::serve`].
    #[must_use]
    pub fn with_caller(self, caller: watch::Receiver<CallerConfig>) -> Self {
        let shared = GatewayState {
            caller: Some(caller),
            ..(*self.shared).clone()
        };
        Self {
            shared: shared.into(),
            ..self
        }
    }

    /// Adds a service for another protocol, to run on the serving threads. To be called before [`Gateway::serve`].
    #[must_use]
    pub fn with_service(mut self, service: Arc<dyn LocalService>) -> Self {
        self.services.push(service);
        self
    }

    /// The functions of the last snapshot.
    pub fn functions(&self) -> FunctionTable {
        FunctionTable(self.shared.table.clone())
    }

    /// Takes over a snapshot. When this returns, nothing new is sent to an instance that it does not call ready.
    pub fn publish(&self, snapshot: &RoutingSnapshot) {
        self.shared.table.publish(snapshot);
    }

    /// Requests for the function that have ended since it was first published, of those that came to the gateway.
    pub fn invocations(&self, id: &FunctionId) -> u64 {
        self.shared
            .table
            .get(id)
            .map_or(0, |function| function.tally.ended_count())
    }

    /// Requests that came, over all functions that there are.
    pub(crate) fn started_count(&self) -> u64 {
        self.shared
            .table
            .functions()
            .iter()
            .map(|function| function.tally.started_count())
            .fold(0, u64::saturating_add)
    }

    /// Serves the listeners on `threads` threads of their own, named `gateway-N`. Each calls `enter` first, which may move
    /// it to another network namespace. Returns when all threads serve.
    ///
    /// # Errors
    /// When `enter` fails, or a thread cannot be started.
    pub fn serve(
        &self,
        listeners: Vec<GatewayListener>,
        threads: usize,
        enter: Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
        drain: drain::DrainWatch,
    ) -> io::Result<ServingThreads> {
        let threads = threads.max(1);
        let (ready, started) = mpsc::channel();
        let mut handles = Vec::new();
        for number in 0..threads {
            let thread = self.build_thread_setup(&listeners, number, threads, &drain)?;
            let (gateway, enter, ready) = (self.clone(), enter.clone(), ready.clone());
            let serve = move || {
                let entered = enter();
                let failed = entered
                    .as_ref()
                    .err()
                    .map(|error| io::Error::new(error.kind(), error.to_string()));
                let _ = ready.send(entered); // the starter waits for it
                match failed {
                    Some(error) => Err(error),
                    None => listen::run_thread(thread, &gateway.settings, &gateway.shared),
                }
            };
            handles.push(
                std::thread::Builder::new()
                    .name(format!("gateway-{number}"))
                    .spawn(serve)?,
            );
        }
        drop(ready);
        started.iter().take(threads).collect::<io::Result<()>>()?;
        let http3 = listeners.into_iter().filter_map(|listener| listener.http3);
        Ok(ServingThreads {
            threads: handles,
            _steered_sockets: http3.flat_map(|http3| http3.sockets).collect(),
        })
    }

    fn build_thread_setup(
        &self,
        all: &[GatewayListener],
        number: usize,
        threads: usize,
        drain: &drain::DrainWatch,
    ) -> io::Result<ThreadSetup> {
        let port = |listener: &GatewayListener| ListenPort {
            zone: listener.zone,
            tls: listener.tls.clone(),
            alt_svc: listener.http3.as_ref().and_then(http3::alt_svc_value),
            limits: self.settings.limits,
            tls_timeout: self.settings.tls_timeout,
            max_connections: self
                .settings
                .max_connections
                .div_ceil(threads.max(listener.sockets.len())),
            drain: drain.clone(),
        };
        let ports = all.iter().flat_map(|listener| {
            let mine = socket_share(listener.sockets.len(), number, threads).into_iter();
            mine.map(move |at| Ok((port(listener), listener.sockets[at].try_clone()?)))
        });
        let ports = ports.collect::<io::Result<_>>()?;
        let http3 = all.iter().filter_map(|listener| {
            listener
                .http3
                .as_ref()
                .filter(|one| number < one.sockets.len())
        });
        let http3 = http3
            .map(|one| http3::Http3ListenPort::new(one, number, &self.settings, drain))
            .collect::<io::Result<_>>()?;
        let tasks = self
            .services
            .iter()
            .filter_map(|service| service.task_for_thread(number, threads).transpose());
        Ok(ThreadSetup {
            thread_number: number as u64,
            ports,
            http3,
            services: tasks.collect::<io::Result<_>>()?,
            drain: drain.clone(),
        })
    }
}

/// Which of a port's sockets a thread serves. Where there are fewer than threads, they share them; where there are more, because another process
/// with more threads has opened them, each serves several.
fn socket_share(sockets: usize, number: usize, threads: usize) -> Vec<usize> {
    match sockets {
        0 => Vec::new(),
        few if few < threads => vec![number % few],
        many => (number..many).step_by(threads).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_socket_has_a_thread_and_each_thread_a_socket() {
        for (sockets, threads) in
            (1..9).flat_map(|sockets| (1..9).map(move |threads| (sockets, threads)))
        {
            let shares: Vec<_> = (0..threads)
                .map(|number| socket_share(sockets, number, threads))
                .collect();
            let served: std::collections::BTreeSet<_> = shares.iter().flatten().copied().collect();
            assert_eq!(
                served,
                (0..sockets).collect(),
                "{sockets} sockets, {threads} threads"
            );
            assert!(shares.iter().all(|part| !part.is_empty()));
        }
        assert!(socket_share(0, 1, 2).is_empty());
    }
}
