//! Lifecycle of an instance: start, serve, drain, stop.
//!
//! Stop order (of-watchdog's): unhealthy at once → wait until callers have noticed → close the port
//! and finish open calls → SIGTERM, then SIGKILL, to the tenant's process. A second signal while
//! waiting skips to the next step.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearpath_wire::mtls::MtlsAcceptor;
use rustix::process::Signal as Kill;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::call_limit::CallLimiter;
use crate::config::upstream_target::UpstreamProtocol;
use crate::config::{ModeName, WatchdogConfig};
use crate::drain::DrainControl;
use crate::identity;
use crate::listen;
use crate::lock_file::LockFile;
use crate::logs::{OutputStream, log_line};
use crate::metrics::WatchdogMetrics;
use crate::mode::{
    HttpMode, ModeHandler, ProcessSpawner, SerializingMode, ServerReadiness, StaticMode,
    StreamingMode,
};
use crate::outbound;
use crate::process::output::{OutputTail, TenantOutput};
use crate::process::{
    ChildReaper, CommandSpec, ListeningPorts, ProcessGroup, TenantExit, is_connected_by_gateway,
};
use crate::process_reports::ProcessReports;
use crate::quic_peers::QuicPeers;
use crate::serve::WatchdogState;
use crate::shm_server::{self, ShmMembership};
use crate::start_notes::StartNotes;
use crate::upstream::connect_any;

/// Delay between two attempts to connect to the tenant's server: the first, and the longest.
const PROBE_DELAY_RANGE: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(20));
/// Time after which a server that listens on another port is logged.
const PORT_HINT_DELAY: Duration = Duration::from_secs(2);
/// Time for the callers of a dead tenant process to get their responses, and for its last output to
/// be read.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Interval at which a drain looks for connections of the gateway to the tenant's port.
const CONNECTION_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Error of an instance that could not start or go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LifecycleError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("cannot start {program:?}: {source}")]
    Start { program: String, source: io::Error },
    #[error(
        "the tenant's server did not accept connections on {addrs:?} within {limit:?} (start_timeout){ports}{tail}"
    )]
    NeverListened {
        addrs: Vec<SocketAddr>,
        limit: Duration,
        ports: String,
        tail: String,
    },
    #[error("the tenant's process ended with {exit} before it accepted connections{tail}")]
    EarlyExit { exit: TenantExit, tail: String },
}

/// Runs the instance to its end. Returns this process's exit code.
///
/// # Errors
/// When the start fails. Later failures are in the exit code.
pub(crate) async fn run(
    config: WatchdogConfig,
    notes: &StartNotes,
    reports: ProcessReports,
    identity: Option<File>,
    started_at: Instant,
) -> Result<ExitCode, LifecycleError> {
    // Before anything else: a signal without a handler is lost for PID 1 (pid_namespaces(7)).
    let mut signals = StopSignals::install()?;
    // Before any child exists, or its exit could be missed.
    let reaper = ChildReaper::start_collecting()?;
    let listener = listen::bind_listener(
        SocketAddr::new(config.bind_address, config.port),
        config.instance_env.shares_port(),
    )?;
    let started = Arc::new(ServerReadiness::default());
    let app = Arc::new(WatchdogState::new(
        config,
        &reaper,
        &started,
        reports,
        MtlsAcceptor::new(identity.is_some()),
    )?);
    let membership = ShmMembership::default();
    let quic_peers = QuicPeers::default();
    if let Some(addrs) = app.config.instance_env.outbound {
        outbound::start_proxy(
            addrs,
            membership.clone(),
            quic_peers.clone(),
            app.config.read_timeout,
        )?; // the tenant may call while it starts
    }
    let mut tenant = TenantServer::start(&app, &reaper)?;
    let drain_control = DrainControl::new();
    let addr = listener.local_addr()?;
    log_line!("listening on {addr}, mode {:?}", app.config.mode);
    // Before the tenant's server is up: early calls wait for it instead of being refused.
    tokio::spawn(listen::accept_connections(
        listener,
        Arc::clone(&app),
        drain_control.subscribe(),
    ));
    let (identity_ready, identity_task) =
        start_identity(&app, addr, identity, &drain_control, quic_peers);
    start_metrics(&app);
    // Without the wait for the tenant: the phase is the watchdog's own start.
    notes.write_phase("watchdog", started_at.elapsed());

    let handler_started_at = Instant::now();
    tokio::select! {
        up = async {
            let up = tenant.wait_ready(&app, notes).await;
            let _ = identity_ready.await; // QUIC and TLS listen, or never will
            up
        } => {
            up?;
            // Only mode `http` has a server to wait for, hence this phase.
            if matches!(app.mode, ModeHandler::Http(_)) {
                notes.write_phase("handler", handler_started_at.elapsed());
            }
            started.mark_ready();
            if let Some(addr) = tenant.own_port() {
                app.announce_server(notes, addr);
            }
            notes.write_ready();
            // Last, so that joining the domain delays no call over HTTP.
            join_domain(&app, membership, &drain_control);
        }
        () = signals.wait_next() => return Ok(stop_instance(&app, drain_control, tenant, &mut signals, identity_task).await),
    }
    tokio::select! {
        exit = tenant.wait_exit() => Ok(handle_server_exit(exit, drain_control, &mut tenant, identity_task).await),
        () = signals.wait_next() => Ok(stop_instance(&app, drain_control, tenant, &mut signals, identity_task).await),
    }
}

/// Joins the domain for calls through shared memory, once nothing is delayed by it.
fn join_domain(app: &Arc<WatchdogState>, membership: ShmMembership, drain_control: &DrainControl) {
    if let Some(socket_path) = app.config.instance_env.dispatch_path.clone() {
        tokio::task::spawn_local(shm_server::join_domain(
            Arc::clone(app),
            membership,
            socket_path,
            drain_control.subscribe(),
        ));
    }
}

impl WatchdogState {
    /// Tells the node where the tenant's server is, if the gateway may call it without this
    /// program.
    fn announce_server(&self, notes: &StartNotes, addr: SocketAddr) {
        if let (true, Some(target)) = (self.is_server_open(), &self.config.upstream) {
            notes.write_server(addr, self.config.exec_timeout, &target.base_path);
        }
    }

    /// Returns whether calls may go to the tenant's server without this program: nothing of what
    /// the configuration asks for needs it.
    fn is_server_open(&self) -> bool {
        let config = &self.config;
        config.mode == ModeName::Http
            && config.upstream_protocol != UpstreamProtocol::H2c
            // Counted here, with the calls from other instances.
            && config.max_inflight == 0
            && !config.buffer_request
            && !config.log_callid
    }

    fn new(
        config: WatchdogConfig,
        reaper: &Arc<ChildReaper>,
        started: &Arc<ServerReadiness>,
        reports: ProcessReports,
        tls_acceptor: MtlsAcceptor,
    ) -> io::Result<Self> {
        let output = Arc::new(TenantOutput::new(
            config.prefix_logs,
            config.max_log_line_bytes,
        ));
        let new_spawner = || {
            ProcessSpawner::new(
                CommandSpec::new(config.command.clone()),
                Arc::clone(reaper),
                Arc::clone(&output),
                reports.clone(),
            )
        };
        let mode = match config.mode {
            ModeName::Http => ModeHandler::Http(
                HttpMode::new(&config, Arc::clone(started), reports.clone())
                    .expect("checked with the variables"),
            ),
            ModeName::Streaming => {
                ModeHandler::Streaming(StreamingMode::new(&config, new_spawner()))
            }
            ModeName::Serializing => {
                ModeHandler::Serializing(SerializingMode::new(&config, new_spawner()))
            }
            // Fallible: a missing folder stops the start instead of failing every request.
            ModeName::Static => ModeHandler::Static(StaticMode::new(&config.static_path)?),
        };
        Ok(Self {
            mode,
            call_limiter: CallLimiter::new(config.max_inflight),
            metrics: Arc::new(WatchdogMetrics::new()),
            lock_file: LockFile::create(config.lock_file.clone())?,
            is_healthy: AtomicBool::new(true),
            output,
            tls_acceptor,
            config,
        })
    }
}

/// Starts the identity session. Returns a receiver that ends when TLS and QUIC listen, or never
/// will. Also returns the session's task, which ends with the last call over QUIC. Without an
/// identity both end at once.
fn start_identity(
    app: &Arc<WatchdogState>,
    addr: SocketAddr,
    identity: Option<File>,
    drain_control: &DrainControl,
    quic_peers: QuicPeers,
) -> (oneshot::Receiver<()>, JoinHandle<()>) {
    let (ready_sender, ready_receiver) = oneshot::channel();
    let ready_sender = Some(ready_sender).filter(|_| app.config.expects_identity); // dropped: nothing has to wait
    // Without the outbound proxy no call of the tenant passes the watchdog, so callees are useless.
    let quic_peers = Some(quic_peers).filter(|_| app.config.instance_env.outbound.is_some());
    let Some(identity) = identity else {
        return (ready_receiver, tokio::spawn(std::future::ready(())));
    };
    let socket = std::os::unix::net::UnixStream::from(OwnedFd::from(identity));
    // `UnixStream::from_std` demands a descriptor that does not block.
    match socket
        .set_nonblocking(true)
        .and_then(|()| UnixStream::from_std(socket))
    {
        Ok(node) => {
            let received = identity::ReceivedDescriptors::default();
            let serving = identity::serve_identity(
                Arc::clone(app),
                addr,
                identity::DescriptorStream::new(node, received.clone()),
                drain_control.subscribe(),
                ready_sender,
                quic_peers,
                received,
            );
            (ready_receiver, tokio::task::spawn_local(serving))
        }
        Err(fault) => {
            app.tls_acceptor.stop_waiting();
            log_line!(
                "identity: NEARPATH_IDENTITY_FD is no socket, so there is neither QUIC nor TLS: {fault}"
            );
            (ready_receiver, tokio::spawn(std::future::ready(())))
        }
    }
}

/// Starts the metrics server. A taken port costs the metrics, not the function.
fn start_metrics(app: &Arc<WatchdogState>) {
    let Some(port) = app.config.metrics_port else {
        return;
    };
    match listen::bind_listener(SocketAddr::new(app.config.bind_address, port), false) {
        Ok(listener) => drop(tokio::spawn(listen::accept_metrics(
            listener,
            Arc::clone(app),
        ))),
        Err(fault) => log_line!(
            "metrics: no listener, the function runs without them: {fault} (metrics_port)"
        ),
    }
}

/// SIGTERM and SIGINT: as PID 1 a process gets only signals that it handles.
struct StopSignals {
    term: Signal,
    int: Signal,
}

impl StopSignals {
    fn install() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    async fn wait_next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }

    /// Waits for `work`, at most `limit` or until another signal. Returns whether it ended by
    /// itself.
    async fn wait_unless_signalled<F: Future>(&mut self, limit: Duration, work: F) -> bool {
        tokio::select! {
            done = timeout(limit, work) => done.is_ok(),
            () = self.wait_next() => false,
        }
    }
}

/// Server of the tenant in mode `http`; `None` in the other modes.
struct TenantServer(Option<ServerProcess>);

struct ServerProcess {
    group: ProcessGroup,
    exit: oneshot::Receiver<TenantExit>,
    tail: OutputTail,
    output_tasks: [JoinHandle<()>; 2],
    addrs: Vec<SocketAddr>,
    /// The one of them that accepts connections.
    accepting: Option<SocketAddr>,
}

impl TenantServer {
    fn start(app: &Arc<WatchdogState>, reaper: &Arc<ChildReaper>) -> Result<Self, LifecycleError> {
        // Mode `static` runs no code of the tenant.
        if app.config.mode == ModeName::Static {
            return Ok(Self(None));
        }
        let command = CommandSpec::new(app.config.command.clone());
        let failed = |source| LifecycleError::Start {
            program: command.program().to_owned(),
            source,
        };
        let (ModeName::Http, Some(target)) = (app.config.mode, &app.config.upstream) else {
            return command.check_program().map(|()| Self(None)).map_err(failed); // reported now, not by the first call
        };
        // No stdin: a server takes its requests from connections.
        let started = command.start_process(reaper, [], false).map_err(failed)?;
        let tail = OutputTail::default();
        let copy_output = |pipe, stream| {
            let (output, tail) = (Arc::clone(&app.output), tail.clone());
            tokio::spawn(async move { output.copy_lines(pipe, stream, Some(tail)).await })
        };
        let output_tasks = [
            copy_output(started.stdout, OutputStream::Stdout),
            copy_output(started.stderr, OutputStream::Stderr),
        ];
        let addrs = target.addrs.clone();
        Ok(Self(Some(ServerProcess {
            group: started.group,
            exit: started.exit,
            tail,
            output_tasks,
            addrs,
            accepting: None,
        })))
    }

    /// Waits until the tenant can take calls.
    async fn wait_ready(
        &mut self,
        app: &WatchdogState,
        notes: &StartNotes,
    ) -> Result<(), LifecycleError> {
        let Some(server) = &mut self.0 else {
            return Ok(());
        };
        let limit = app.config.start_timeout;
        // The exit as well: a server that has died would be waited for until the timeout.
        let exit = tokio::select! {
            up = timeout(limit, wait_accepting(&server.addrs, &server.group, notes)) => match up {
                Ok(addr) => {
                    server.accepting = addr;
                    return Ok(());
                }
                Err(_) => None,
            },
            // The sender is lost only with the reaper, hence at the end of this process.
            exit = &mut server.exit => Some(exit.unwrap_or(TenantExit::Signal(0))),
        };
        let tail = server.output_tail(exit.is_some()).await;
        Err(match exit {
            Some(exit) => LifecycleError::EarlyExit { exit, tail },
            None => LifecycleError::NeverListened {
                addrs: server.addrs.clone(),
                limit,
                ports: port_hint(&server.group.listening_ports()),
                tail,
            },
        })
    }

    /// Returns the address that accepts connections; `None` without a server.
    fn own_port(&self) -> Option<SocketAddr> {
        self.0.as_ref()?.accepting
    }

    /// Waits for the server's exit; for ever without a server.
    async fn wait_exit(&mut self) -> TenantExit {
        match &mut self.0 {
            Some(server) => (&mut server.exit).await.unwrap_or(TenantExit::Signal(0)),
            None => std::future::pending().await,
        }
    }
}

impl ServerProcess {
    /// Returns the last lines of the server's output; of an exited process, after all of them were
    /// read.
    async fn output_tail(&mut self, has_exited: bool) -> String {
        if has_exited {
            let [stdout, stderr] = &mut self.output_tasks;
            // Bounded: a background process may hold the pipes open after the exit.
            let _ = timeout(EXIT_GRACE, async { (stdout.await, stderr.await) }).await;
        }
        match self.tail.joined_lines() {
            text if text.is_empty() => String::new(),
            text => format!("; last output: {text}"),
        }
    }
}

/// Returns the server's address when a connection could be made. The server sees it close at once, which every server
/// survives. Until then, a server on another port is reported once.
async fn wait_accepting(
    addrs: &[SocketAddr],
    group: &ProcessGroup,
    notes: &StartNotes,
) -> Option<SocketAddr> {
    let mut delay = PROBE_DELAY_RANGE.0;
    let mut hint_at = Some(Instant::now() + PORT_HINT_DELAY);
    loop {
        if let Ok(stream) = connect_any(addrs).await {
            return stream.peer_addr().ok();
        }
        if hint_at.take_if(|at| Instant::now() > *at).is_some() {
            let hint = port_hint(&group.listening_ports());
            if hint.is_empty() {
                hint_at = Some(Instant::now() + PORT_HINT_DELAY);
            } else {
                let text = format!("waiting for the tenant's server on {addrs:?}{hint}");
                log_line!("{text}");
                notes.write_remark(&text); // whoever deployed it looks at the function first
            }
        }
        sleep(delay).await;
        delay = (delay * 2).min(PROBE_DELAY_RANGE.1);
    }
}

/// Names the port of a server that does not listen where `upstream_url` says; empty without one.
fn port_hint(ports: &ListeningPorts) -> String {
    match ports.of_group.first() {
        Some(port) => {
            format!("; it listens on port {port}: set upstream_url to http://127.0.0.1:{port}")
        }
        None => String::new(),
    }
}

/// Handles the exit of the tenant's server: open calls get their responses, then this process ends
/// and the node starts anew.
async fn handle_server_exit(
    exit: TenantExit,
    drain_control: DrainControl,
    tenant: &mut TenantServer,
    identity_task: JoinHandle<()>,
) -> ExitCode {
    let tail = match &mut tenant.0 {
        Some(server) => server.output_tail(true).await,
        None => String::new(),
    };
    log_line!("the tenant's process ended with {exit}{tail}");
    let _ = timeout(EXIT_GRACE, drain_control.drain_connections()).await;
    let _ = timeout(EXIT_GRACE, identity_task).await; // callers over QUIC notice an end only by its CLOSE frame
    ExitCode::from(exit.failure_code())
}

async fn stop_instance(
    app: &WatchdogState,
    drain_control: DrainControl,
    tenant: TenantServer,
    signals: &mut StopSignals,
    identity_task: JoinHandle<()>,
) -> ExitCode {
    // Both marks at once: probes of containers look at the file, HTTP probes at the flag.
    app.is_healthy.store(false, Ordering::Relaxed);
    app.lock_file.remove();
    log_line!(
        "stopping: unhealthy for {:?}, then closing",
        app.config.healthcheck_interval
    );
    // Calls are still accepted, because the gateway needs this long to notice.
    signals
        .wait_unless_signalled(
            app.config.healthcheck_interval,
            std::future::pending::<()>(),
        )
        .await;
    let drain_timeout = app.config.write_timeout.unwrap_or_default();
    let own_port = tenant.own_port().filter(|_| app.is_server_open());
    let drained = async {
        drain_control.drain_connections().await;
        app.mode.close_idle_connections();
        if let Some(addr) = own_port {
            wait_unconnected(addr.port()).await;
        }
    };
    if !signals.wait_unless_signalled(drain_timeout, drained).await {
        log_line!(
            "calls were still in progress after {drain_timeout:?} (write_timeout) and are cut"
        );
    }
    let _ = timeout(EXIT_GRACE, identity_task).await; // callers over QUIC notice an end only by its CLOSE frame
    // After the drain, because open calls still need the tenant.
    stop_tenant(tenant, app.config.stop_grace).await;
    log_line!("stopped");
    ExitCode::SUCCESS
}

/// Returns when the gateway has no connection to a port of this namespace: its own calls are over.
async fn wait_unconnected(port: u16) {
    while is_connected_by_gateway(port) {
        sleep(CONNECTION_POLL_INTERVAL).await;
    }
}

async fn stop_tenant(tenant: TenantServer, grace: Duration) {
    let Some(mut server) = tenant.0 else { return };
    // To the whole group: a shell in between would not pass the signal on.
    server.group.send_signal(Kill::TERM);
    if timeout(grace, &mut server.exit).await.is_err() {
        log_line!(
            "the tenant's process did not end within {grace:?} of SIGTERM (stop_grace) and is killed"
        );
        server.group.send_signal(Kill::KILL);
        let _ = (&mut server.exit).await;
    }
    // The output is copied by tasks, which end with this process.
    let _ = server.output_tail(true).await;
}
