//! The handle through which the rest of the program uses the gateway.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use http::HeaderValue;
use nearpath_daemon::drain;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::{FunctionId, RoutingSnapshot};
use nearpath_wire::quic::{CallerConfig, RefusalStats};
use tokio::sync::watch;

use crate::GatewaySettings;
use crate::context::{BusyThreads, GatewayState};
use crate::control::GatewayControl;
use crate::function::RoutingTable;
use crate::invoke::{FunctionTable, LocalService};
use crate::listen::node_quic::NodeQuicPort;
use crate::listen::{self, AcceptSetup, GatewayListener, ListenPort, ThreadSetup, http3};
use crate::record::{AccessLog, GatewayMetrics, GatewayTotals};
use crate::spool::SpoolDirectory;

/// Handle of the gateway. Clones share the same state.
#[derive(Clone)]
pub struct Gateway {
    settings: Arc<GatewaySettings>,
    shared: Arc<GatewayState>,
    services: Vec<Arc<dyn LocalService>>,
}

/// The serving threads of a running gateway.
#[must_use = "without joining it, nobody knows when the drain is over"]
pub struct ServingThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// UDP sockets of all threads, kept open until the last thread ends. If one of a reuseport
    /// group closed early, the kernel would renumber the others and misroute packets.
    _steered_sockets: Vec<UdpSocket>,
}

impl ServingThreads {
    /// Blocks until every thread has ended, which is after the drain.
    ///
    /// # Errors
    /// Returns the first error of a thread that could not serve or panicked.
    pub fn join_all(self) -> io::Result<()> {
        let ends = self.threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        });
        ends.collect()
    }
}

impl Gateway {
    /// Creates a gateway without functions. Its metrics go to `registry`.
    pub fn new(
        settings: GatewaySettings,
        control: Arc<dyn GatewayControl>,
        registry: &MetricsRegistry,
    ) -> Self {
        // Weak: the registry keeps this collector for good, and must not keep the control alive.
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
        // A name that no header can carry is replaced instead of failing the start for a cosmetic
        // setting.
        let served_by =
            HeaderValue::from_str(&settings.name).unwrap_or(HeaderValue::from_static("nearpath"));
        let shared = Arc::new(GatewayState {
            table,
            control,
            totals,
            log: None,
            served_by,
            loopback_pools: Arc::default(),
            caller: None,
            node_caller: None,
            spool_directory: None,
            busy_threads: BusyThreads::default(),
        });
        Self {
            settings: settings.into(),
            shared,
            services: Vec::new(),
        }
    }

    /// Adds an access log with one JSON line per request; see `record::access_log`. Call before
    /// [`Gateway::serve`].
    ///
    /// # Errors
    /// When the thread of the log cannot be started.
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

    /// Adds the certificate with which the gateway calls instances over QUIC and TLS. The channel
    /// brings renewals. Call before [`Gateway::serve`].
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

    /// Adds the certificate with which the gateway calls other nodes. The channel brings renewals. Call
    /// before [`Gateway::serve`].
    #[must_use]
    pub fn with_node_caller(self, caller: watch::Receiver<CallerConfig>) -> Self {
        let shared = GatewayState {
            node_caller: Some(caller),
            ..(*self.shared).clone()
        };
        Self {
            shared: shared.into(),
            ..self
        }
    }

    /// Adds a service for another protocol that runs on the serving threads. Call before
    /// [`Gateway::serve`].
    #[must_use]
    pub fn with_service(mut self, service: Arc<dyn LocalService>) -> Self {
        self.services.push(service);
        self
    }

    /// Returns the functions of the last snapshot.
    pub fn functions(&self) -> FunctionTable {
        FunctionTable(self.shared.table.clone())
    }

    /// Returns the refused connections and calls of other nodes; changes with each of them.
    pub fn node_refusals(&self) -> watch::Receiver<RefusalStats> {
        self.shared.totals.node_refusals.subscribe()
    }

    /// Applies a snapshot. After the return, no thread sends new requests to an instance that the
    /// snapshot does not call ready.
    pub fn publish(&self, snapshot: &RoutingSnapshot) {
        self.shared.table.publish(snapshot);
    }

    /// Returns the completed requests for the function since it was first published. Requests from
    /// other nodes and calls past the gateway are not included.
    pub fn invocations(&self, id: &FunctionId) -> u64 {
        self.functions().invocations(id)
    }

    /// Returns the requests received, over all current functions.
    pub(crate) fn started_count(&self) -> u64 {
        // This sum can fall; [`crate::quota`] accepts that.
        self.functions().started_requests()
    }

    /// Serves the listeners on `threads` new threads named `gateway-N`. Each calls `enter` first,
    /// which may move it to another network namespace. Returns when all threads serve.
    ///
    /// # Errors
    /// When `enter` fails or a thread cannot be started.
    pub fn serve(
        &self,
        listeners: Vec<GatewayListener>,
        threads: usize,
        enter: Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
        drain: drain::DrainWatch,
    ) -> io::Result<ServingThreads> {
        let threads = threads.max(1);
        let gateway = self.with_spool_directory(threads);
        // Each thread reports after `enter`: a namespace that cannot be entered must fail the
        // start, not a later request.
        let (ready, started) = mpsc::channel();
        let mut handles = Vec::new();
        for number in 0..threads {
            let thread = self.build_thread_setup(&listeners, number, threads, &drain)?;
            let (gateway, enter, ready) = (gateway.clone(), enter.clone(), ready.clone());
            let serve = move || {
                let entered = enter();
                // `io::Error` is not `Clone`. The starter gets the original, the thread's own
                // result a copy of kind and text.
                let failed = entered
                    .as_ref()
                    .err()
                    .map(|error| io::Error::new(error.kind(), error.to_string()));
                let _ = ready.send(entered); // the starting thread waits for it
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
        // Without this drop, the receiver would wait forever if a thread ended before it
        // reported.
        drop(ready);
        started.iter().take(threads).collect::<io::Result<()>>()?;
        let steered = listeners.into_iter().flat_map(|listener| {
            let http3 = listener.http3.into_iter().flat_map(|http3| http3.sockets);
            http3.chain(listener.node_quic.into_iter().flat_map(|quic| quic.sockets))
        });
        Ok(ServingThreads {
            threads: handles,
            _steered_sockets: steered.collect(),
        })
    }

    /// Opens the folder of the spool. Without it, slow callers hold their places more often, but
    /// all requests are served.
    fn with_spool_directory(&self, threads: usize) -> Self {
        let path = self.settings.spool_dir.as_deref();
        let spool_directory = path.and_then(|path| {
            let opened = SpoolDirectory::open_empty(path, threads).inspect_err(|error| {
                tracing::warn!(%error, ?path, "gateway: no spool, bodies are read ahead in memory only");
            });
            opened.ok().map(Arc::new)
        });
        let shared = GatewayState {
            spool_directory,
            ..(*self.shared).clone()
        };
        Self {
            shared: shared.into(),
            ..self.clone()
        }
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
            // The limit holds over all threads, so each socket gets its share. With more sockets
            // than threads, the sockets count.
            max_connections: self
                .settings
                .max_connections
                .div_ceil(threads.max(listener.sockets.len())),
            drain: drain.clone(),
        };
        let ports = all.iter().flat_map(|listener| {
            let mine = socket_share(listener.sockets.len(), number, threads).into_iter();
            mine.map(move |at| {
                Ok(AcceptSetup {
                    port: port(listener),
                    socket: listener.sockets[at].try_clone()?,
                    handed_over: listener.handed_over.clone(),
                })
            })
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
        let node_quic = all
            .iter()
            .find_map(|listener| NodeQuicPort::of_listener(listener, number, drain));
        let tasks = self
            .services
            .iter()
            .filter_map(|service| service.task_for_thread(number, threads).transpose());
        Ok(ThreadSetup {
            thread_number: number,
            ports,
            http3,
            node_quic: node_quic.transpose()?,
            services: tasks.collect::<io::Result<_>>()?,
            drain: drain.clone(),
            busy: self.shared.busy_threads.add_thread(),
        })
    }
}

/// Selects the sockets of a port that a thread serves. Threads share sockets if there are fewer
/// sockets than threads. A thread serves several after a handover from a process with more
/// threads.
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
