//! Serves until a signal: everything that can be refused is refused before anything is taken.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use nearpath_daemon::admin::Admin;
use nearpath_daemon::logs::{self, Format};
use nearpath_daemon::metrics::Registry;
use nearpath_daemon::ready::Readiness;
use nearpath_daemon::{drain, signals};
use nearpath_meet::server::{self, Limits, Place, Rate, Rendezvous, Settings, desk};
use nearpath_meet::ticket::Key;
use nearpath_wire::{bind, tls};
use serde_json::json;

use super::ServeArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

/// How many at once, as a multiple of how many a second.
const BURST: u64 = 10;

/// Serves.
pub(super) fn run(args: &ServeArgs) -> Outcome {
    logs::init(if args.log_json { Format::Json } else { Format::Text });
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("rendezvous").enable_all().build();
    runtime.map_err(failed("runtime"))?.block_on(live(args))
}

async fn live(args: &ServeArgs) -> Outcome {
    let end = signals::listen().map_err(failed("signals"))?;
    guard(args)?;
    let key = key(args)?;
    raise_open_files();
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(secret)) => Some(tls::load(cert, secret).map_err(failed("TLS"))?),
        _ => None,
    };
    let listener = one(args.listen, "--listen")?;
    let admin = one(args.admin_listen, "--admin-listen")?;
    let (registry, readiness) = (Registry::default(), Readiness::default());
    let pending = readiness.pending("rendezvous");
    let ((trigger, drain), (admin_trigger, admin_drain)) = (drain::channel(), drain::channel());
    let secure = tls.is_some();
    let settings = Settings { key, listener, tls, observers: observers(args), limits: limits(args), drain };
    let running = server::start(settings, &registry).map_err(failed("--observe"))?;
    Admin { registry, readiness }.serve(admin, admin_drain).map_err(failed("--admin-listen"))?;
    drop(pending);
    announce(args, &running, secure)?;
    end.await;
    tracing::info!("draining: lines are told to go, open relays go on");
    if tokio::time::timeout(args.drain_timeout, trigger.drain()).await.is_err() {
        tracing::warn!("relays were still open after --drain-timeout, and are cut");
    }
    admin_trigger.drain().await;
    Ok(Exit::Ok)
}

fn failed<E: Display>(part: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::new(Exit::Failed, format!("rendezvous: {part}: {error}"))
}

/// Tickets open doors: they are not to go over a network that others read.
fn guard(args: &ServeArgs) -> Result<(), Failure> {
    let open = args.tls_cert.is_none() && !args.behind_proxy && !args.listen.ip().is_loopback();
    let text = "without TLS, tickets can be read on the way: give --tls-cert and --tls-key, or --behind-proxy where a proxy has TLS";
    if open { Err(Failure::new(Exit::Usage, format!("rendezvous: --listen {}: {text}", args.listen))) } else { Ok(()) }
}

fn key(args: &ServeArgs) -> Result<Key, Failure> {
    let path = args.key.path();
    if args.key.key.is_none()
        && let Some(folder) = path.parent()
    {
        std::fs::create_dir_all(folder).map_err(failed("data directory"))?;
    }
    Key::read_or_make(&path).map_err(failed("--key"))
}

fn one(addr: SocketAddr, option: &'static str) -> Result<std::net::TcpListener, Failure> {
    let sockets = bind::bind(addr, 1).map_err(failed(option))?;
    sockets.into_iter().next().ok_or_else(|| failed(option)("no socket was opened"))
}

fn observers(args: &ServeArgs) -> Vec<Place> {
    let default = Place { bind: SocketAddr::new(args.listen.ip(), 7844), public: None };
    if args.observe.is_empty() { vec![default] } else { args.observe.clone() }
}

fn limits(args: &ServeArgs) -> Limits {
    let rate = |per_second: u64| (per_second > 0).then_some(Rate { per_second, burst: per_second });
    Limits {
        desk: desk::Limits { lines: args.lines, lines_of_a_job: args.lines_of_a_job, ..desk::Limits::default() },
        arrivals: Rate { per_second: args.arrivals, burst: args.arrivals.saturating_mul(BURST) },
        relays: args.relays,
        relay_idle: args.relay_idle.max(Duration::from_secs(1)),
        relay_rate: rate(args.relay_rate),
        job_rate: rate(args.job_rate),
        ..Limits::default()
    }
}

/// A line takes a descriptor; the soft limit is often 1024 for the sake of select(2), which nothing here uses.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn announce(args: &ServeArgs, running: &Rendezvous, tls: bool) -> Result<(), Failure> {
    let scheme = if tls { "wss" } else { "ws" };
    let place = format!("{scheme}://{}", running.addr);
    let observers: Vec<_> = running.observers.iter().map(|one| json!({"transport": if one.transport == nearpath_meet::Transport::Udp { "udp" } else { "tcp" }, "addr": one.addr})).collect();
    if args.json {
        return output::print(&format!(
            "{}\n",
            json!({"rendezvous": place, "observers": observers, "metrics": format!("http://{}/metrics", args.admin_listen), "key": args.key.path()})
        ));
    }
    eprintln!("nearpath rendezvous {} is up", env!("CARGO_PKG_VERSION"));
    eprintln!("  workers  {place}");
    for one in running.observers.iter().filter(|one| !one.second_port && one.transport == nearpath_meet::Transport::Udp)
    {
        eprintln!("  observes {} and the next port (UDP and TCP)", one.addr);
    }
    eprintln!("  metrics  http://{}/metrics", args.admin_listen);
    eprintln!("  key      {}", args.key.path().display());
    Ok(())
}
