//! The life of an instance: start, serve, drain, stop.
//!
//! Stop order (of-watchdog's): unhealthy at once → wait until callers have noticed → close the port and finish what is in
//! progress → SIGTERM, then SIGKILL, to the tenant's process. A second signal while waiting skips to the next step.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearpath_wire::mutual::Entrance;
use rustix::process::Signal as Kill;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::config::{Config, ModeName};
use crate::drain::Closing;
use crate::edges::Edges;
use crate::identity;
use crate::inflight::Inflight;
use crate::listen;
use crate::lock::Lock;
use crate::logs::{Stream, say};
use crate::metrics::Metrics;
use crate::mode::{Forks, Http, Mode, Serializing, Started, Static, Streaming};
use crate::notes::Notes;
use crate::party::{self, Membership};
use crate::pickup;
use crate::process::output::{Output, Tail};
use crate::process::{Exit, Group, Reaper, Recipe};
use crate::serve::App;
use crate::upstream::connect;

/// First and longest pause between two tries to connect to the tenant's server.
const PROBE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// For the callers of a tenant's process that died to get their answers, and for its last words to be read.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why an instance could not start or go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("cannot start {program:?}: {source}")]
    Start { program: String, source: io::Error },
    #[error("the tenant's server did not accept connections on {addrs:?} within {limit:?} (start_timeout){tail}")]
    Silent { addrs: Vec<SocketAddr>, limit: Duration, tail: String },
    #[error("the tenant's process ended with {exit} before it accepted connections{tail}")]
    EarlyExit { exit: Exit, tail: String },
}

/// Runs the instance to its end; the code is this process's.
///
/// # Errors
/// When the start fails. What happens later is in the code.
pub(crate) async fn run(
    config: Config,
    notes: &mut Notes,
    identity: Option<File>,
    born: Instant,
) -> Result<ExitCode, Failure> {
    let mut signals = Signals::install()?;
    let reaper = Reaper::run()?;
    let listener = listen::bind(SocketAddr::new(config.bind, config.port), config.premises.pickup.is_some())?;
    let started = Arc::new(Started::default());
    let app = Arc::new(App::new(config, &reaper, &started, Entrance::new(identity.is_some()))?);
    let membership = Membership::default();
    let edges = Edges::default();
    if let Some(place) = app.config.premises.pickup {
        pickup::start(place, membership.clone(), edges.clone(), app.config.read_timeout)?; // the tenant may call while it starts
    }
    let mut tenant = Tenant::start(&app, &reaper)?;
    let closing = Closing::new();
    let addr = listener.local_addr()?;
    say!("listening on {addr}, mode {:?}", app.config.mode);
    tokio::spawn(listen::accept(listener, Arc::clone(&app), closing.watch()));
    let (told, identified) = take_identity(&app, addr, identity, &closing, edges);
    serve_metrics(&app);
    notes.phase("watchdog", born.elapsed());

    let begun = Instant::now();
    tokio::select! {
        up = async {
            let up = tenant.up(&app).await;
            let _ = told.await; // it listens, or never will
            up
        } => {
            up?;
            if matches!(app.mode, Mode::Http(_)) {
                notes.phase("handler", begun.elapsed());
            }
            started.set();
            notes.ready();
            take_part(&app, membership, &closing);
        }
        () = signals.next() => return Ok(stop(&app, closing, tenant, &mut signals, identified).await),
    }
    tokio::select! {
        exit = tenant.exit() => Ok(died(exit, closing, &mut tenant, identified).await),
        () = signals.next() => Ok(stop(&app, closing, tenant, &mut signals, identified).await),
    }
}

/// Opens the second way in, once there is nothing that it could delay.
fn take_part(app: &Arc<App>, membership: Membership, closing: &Closing) {
    if let Some(door) = app.config.premises.dispatch.clone() {
        tokio::task::spawn_local(party::join(Arc::clone(app), membership, door, closing.watch()));
    }
}

impl App {
    fn new(config: Config, reaper: &Arc<Reaper>, started: &Arc<Started>, entrance: Entrance) -> io::Result<Self> {
        let output = Arc::new(Output::new(config.prefix_logs, config.log_line));
        let forks = || Forks::new(Recipe::new(config.command.clone()), Arc::clone(reaper), Arc::clone(&output));
        let mode = match config.mode {
            ModeName::Http => Mode::Http(Http::new(&config, Arc::clone(started)).expect("checked with the variables")),
            ModeName::Streaming => Mode::Streaming(Streaming::new(&config, forks())),
            ModeName::Serializing => Mode::Serializing(Serializing::new(&config, forks())),
            ModeName::Static => Mode::Static(Static::new(&config.static_path)?),
        };
        Ok(Self {
            mode,
            inflight: Inflight::new(config.max_inflight),
            metrics: Arc::new(Metrics::new()),
            lock: Lock::make(config.lock.clone())?,
            healthy: AtomicBool::new(true),
            output,
            entrance,
            config,
        })
    }
}

/// Without an identity there is nobody to be over QUIC or TLS. Returns what an instance that is to be told who it is waits for before it is
/// ready: callers would find nobody, which ends in every case; and the task, which ends with the last call over QUIC.
fn take_identity(
    app: &Arc<App>,
    addr: SocketAddr,
    identity: Option<File>,
    closing: &Closing,
    edges: Edges,
) -> (oneshot::Receiver<()>, JoinHandle<()>) {
    let (listens, told) = oneshot::channel();
    let listens = Some(listens).filter(|_| app.config.identity_awaited); // dropped: nobody has to wait
    let edges = Some(edges).filter(|_| app.config.premises.pickup.is_some());
    let Some(identity) = identity else { return (told, tokio::spawn(std::future::ready(()))) };
    let socket = std::os::unix::net::UnixStream::from(OwnedFd::from(identity));
    match socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket)) {
        Ok(node) => {
            let serving = identity::serve(Arc::clone(app), addr, node, closing.watch(), listens, edges);
            (told, tokio::task::spawn_local(serving))
        }
        Err(fault) => {
            app.entrance.give_up();
            say!("no QUIC, no TLS: NEARPATH_IDENTITY_FD is no socket: {fault}");
            (told, tokio::spawn(std::future::ready(())))
        }
    }
}

/// A port that is taken costs the metrics, not the function.
fn serve_metrics(app: &Arc<App>) {
    let Some(port) = app.config.metrics_port else { return };
    match listen::bind(SocketAddr::new(app.config.bind, port), false) {
        Ok(listener) => drop(tokio::spawn(listen::accept_metrics(listener, Arc::clone(app)))),
        Err(fault) => say!("no metrics: {fault} (metrics_port)"),
    }
}

/// SIGTERM and SIGINT; as PID 1 a process gets only signals that it asks for.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }

    /// Waits for `what`, at most `limit` or until another signal; whether it came to its end.
    async fn unless<F: Future>(&mut self, limit: Duration, what: F) -> bool {
        tokio::select! {
            done = timeout(limit, what) => done.is_ok(),
            () = self.next() => false,
        }
    }
}

/// The tenant's server of mode `http`; nothing in the other modes.
struct Tenant(Option<Server>);

struct Server {
    group: Group,
    exit: oneshot::Receiver<Exit>,
    tail: Tail,
    pumps: [JoinHandle<()>; 2],
    addrs: Vec<SocketAddr>,
}

impl Tenant {
    fn start(app: &Arc<App>, reaper: &Arc<Reaper>) -> Result<Self, Failure> {
        if app.config.mode == ModeName::Static {
            return Ok(Self(None));
        }
        let recipe = Recipe::new(app.config.command.clone());
        let failed = |source| Failure::Start { program: recipe.name().to_owned(), source };
        let (ModeName::Http, Some(target)) = (app.config.mode, &app.config.upstream) else {
            return recipe.find().map(|()| Self(None)).map_err(failed); // told now, not by the first call
        };
        let started = recipe.start(reaper, [], false).map_err(failed)?;
        let tail = Tail::default();
        let pump = |pipe, stream| {
            let (output, tail) = (Arc::clone(&app.output), tail.clone());
            tokio::spawn(async move { output.pump(pipe, stream, Some(tail)).await })
        };
        let pumps = [pump(started.stdout, Stream::Stdout), pump(started.stderr, Stream::Stderr)];
        let addrs = target.addrs.clone();
        Ok(Self(Some(Server { group: started.group, exit: started.exit, tail, pumps, addrs })))
    }

    /// Waits until calls can be answered.
    async fn up(&mut self, app: &App) -> Result<(), Failure> {
        let Some(server) = &mut self.0 else { return Ok(()) };
        let limit = app.config.start_timeout;
        let exit = tokio::select! {
            up = timeout(limit, accepts(&server.addrs)) => match up {
                Ok(()) => return Ok(()),
                Err(_) => None,
            },
            exit = &mut server.exit => Some(exit.unwrap_or(Exit::Signal(0))),
        };
        let tail = server.last_words(exit.is_some()).await;
        Err(match exit {
            Some(exit) => Failure::EarlyExit { exit, tail },
            None => Failure::Silent { addrs: server.addrs.clone(), limit, tail },
        })
    }

    /// Its end; never, if there is none.
    async fn exit(&mut self) -> Exit {
        match &mut self.0 {
            Some(server) => (&mut server.exit).await.unwrap_or(Exit::Signal(0)),
            None => std::future::pending().await,
        }
    }
}

impl Server {
    /// The last lines of its output; of a dead process, after all of them were read.
    async fn last_words(&mut self, dead: bool) -> String {
        if dead {
            let [stdout, stderr] = &mut self.pumps;
            let _ = timeout(LAST_WORDS, async { (stdout.await, stderr.await) }).await;
        }
        match self.tail.text() {
            text if text.is_empty() => String::new(),
            text => format!("; last output: {text}"),
        }
    }
}

/// Returns when a connection could be made. The server gets the connection and its end, which every server survives.
async fn accepts(addrs: &[SocketAddr]) {
    let mut pause = PROBE.0;
    while connect(addrs).await.is_err() {
        sleep(pause).await;
        pause = (pause * 2).min(PROBE.1);
    }
}

/// The tenant's server has died: what was in progress gets its answers, then this process ends too and the node starts anew.
async fn died(exit: Exit, closing: Closing, tenant: &mut Tenant, identified: JoinHandle<()>) -> ExitCode {
    let tail = match &mut tenant.0 {
        Some(server) => server.last_words(true).await,
        None => String::new(),
    };
    say!("the tenant's process ended with {exit}{tail}");
    let _ = timeout(LAST_WORDS, closing.finish()).await;
    let _ = timeout(LAST_WORDS, identified).await; // callers over QUIC learn of an end only by being told
    ExitCode::from(exit.as_failure())
}

async fn stop(
    app: &App,
    closing: Closing,
    tenant: Tenant,
    signals: &mut Signals,
    identified: JoinHandle<()>,
) -> ExitCode {
    app.healthy.store(false, Ordering::Relaxed);
    app.lock.release();
    say!("stopping: unhealthy for {:?}, then closing", app.config.healthcheck_interval);
    signals.unless(app.config.healthcheck_interval, std::future::pending::<()>()).await;
    let drain = app.config.write_timeout.unwrap_or_default();
    if !signals.unless(drain, closing.finish()).await {
        say!("calls were still in progress after {drain:?} (write_timeout) and are cut");
    }
    let _ = timeout(LAST_WORDS, identified).await; // callers over QUIC learn of an end only by being told
    end_tenant(tenant, app.config.stop_grace).await;
    say!("stopped");
    ExitCode::SUCCESS
}

async fn end_tenant(tenant: Tenant, grace: Duration) {
    let Some(mut server) = tenant.0 else { return };
    server.group.signal(Kill::TERM);
    if timeout(grace, &mut server.exit).await.is_err() {
        say!("the tenant's process did not end within {grace:?} of SIGTERM (stop_grace) and is killed");
        server.group.signal(Kill::KILL);
        let _ = (&mut server.exit).await;
    }
    let _ = server.last_words(true).await;
}
