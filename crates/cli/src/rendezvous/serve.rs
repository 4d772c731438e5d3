//! Serves until a signal. Every refusal comes before anything is started.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use nearpath_daemon::admin::AdminServer;
use nearpath_daemon::logs::{self, LogFormat};
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_daemon::ready::ProcessReadiness;
use nearpath_daemon::{drain, signals};
use nearpath_p2p::ticket::RendezvousKey;
use nearpath_rendezvous::{
    ObserverBinding, RateLimit, RendezvousLimits, RendezvousSettings, RunningRendezvous, state,
};
use nearpath_wire::{sockets, tls};
use serde_json::json;

use super::ServeArgs;
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::output;

/// Size of a burst of new connections, as a multiple of the rate per second.
const BURST_FACTOR: u64 = 10;

/// Serves until SIGTERM or SIGINT.
pub(super) fn run(args: &ServeArgs) -> CommandResult {
    logs::init(if args.log_json {
        LogFormat::Json
    } else {
        LogFormat::Text
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("rendezvous")
        .enable_all()
        .build();
    runtime.map_err(failed("runtime"))?.block_on(serve(args))
}

async fn serve(args: &ServeArgs) -> CommandResult {
    // First: a signal during the start must not be lost.
    let end = signals::listen_for_signals().map_err(failed("signals"))?;
    // Before ports and files are touched: a refused start leaves nothing behind.
    check_encryption(args)?;
    let key = load_key(args)?;
    raise_open_files();
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(secret)) => Some(tls::load_config(cert, secret).map_err(failed("TLS"))?),
        _ => None,
    };
    let listener = bind_one(args.listen, "--listen")?;
    let admin = bind_one(args.admin_listen, "--admin-listen")?;
    let (registry, readiness) = (MetricsRegistry::default(), ProcessReadiness::default());
    // Held until all listeners serve: /healthz must not be ready before.
    let pending = readiness.add_pending("rendezvous");
    let ((trigger, drain), (admin_trigger, admin_drain)) = (drain::channel(), drain::channel());
    let secure = tls.is_some();
    let settings = RendezvousSettings {
        key,
        listener,
        tls,
        observers: observers(args),
        limits: limits(args),
        drain,
    };
    let running =
        nearpath_rendezvous::start_rendezvous(settings, &registry).map_err(failed("--observe"))?;
    AdminServer {
        registry,
        readiness,
    }
    .serve(admin, admin_drain)
    .map_err(failed("--admin-listen"))?;
    drop(pending);
    print_addresses(args, &running, secure)?;
    end.await;
    tracing::info!("draining: closing control connections, open relays continue");
    if tokio::time::timeout(args.drain_timeout, trigger.drain())
        .await
        .is_err()
    {
        tracing::warn!("closing relays that are still open after --drain-timeout");
    }
    admin_trigger.drain().await;
    Ok(ExitStatus::Ok)
}

fn failed<E: Display>(part: &'static str) -> impl Fn(E) -> CommandError {
    move |error| CommandError::new(ExitStatus::Failed, format!("rendezvous: {part}: {error}"))
}

/// Rejects plain text on a network: whoever reads a ticket can use it.
fn check_encryption(args: &ServeArgs) -> Result<(), CommandError> {
    let open = args.tls_cert.is_none() && !args.behind_proxy && !args.listen.ip().is_loopback();
    let text = "without TLS, others can read tickets: use --tls-cert and --tls-key, or --behind-proxy if a proxy terminates TLS";
    if open {
        Err(CommandError::new(
            ExitStatus::Usage,
            format!("rendezvous: --listen {}: {text}", args.listen),
        ))
    } else {
        Ok(())
    }
}

fn load_key(args: &ServeArgs) -> Result<RendezvousKey, CommandError> {
    let path = args.key.key_path();
    // Only the default folder is created: a missing one in an option is more likely a mistake.
    if args.key.key.is_none()
        && let Some(folder) = path.parent()
    {
        std::fs::create_dir_all(folder).map_err(failed("data directory"))?;
    }
    RendezvousKey::read_or_create(&path).map_err(failed("--key"))
}

fn bind_one(addr: SocketAddr, option: &'static str) -> Result<std::net::TcpListener, CommandError> {
    let sockets = sockets::bind_tcp(addr, 1).map_err(failed(option))?;
    sockets
        .into_iter()
        .next()
        .ok_or_else(|| failed(option)("no socket was opened"))
}

fn observers(args: &ServeArgs) -> Vec<ObserverBinding> {
    let default = ObserverBinding {
        bind: SocketAddr::new(args.listen.ip(), 7844),
        public: None,
    };
    if args.observe.is_empty() {
        vec![default]
    } else {
        args.observe.clone()
    }
}

fn limits(args: &ServeArgs) -> RendezvousLimits {
    let rate = |per_second: u64| {
        (per_second > 0).then_some(RateLimit {
            per_second,
            burst: per_second,
        })
    };
    RendezvousLimits {
        state: state::StateLimits {
            max_connections: args.max_connections,
            max_job_connections: args.max_job_connections,
            ..state::StateLimits::default()
        },
        arrival_rate: RateLimit {
            per_second: args.connection_rate,
            burst: args.connection_rate.saturating_mul(BURST_FACTOR),
        },
        max_relays: args.max_relays,
        relay_idle_timeout: args.relay_idle.max(Duration::from_secs(1)),
        relay_rate: rate(args.relay_rate),
        job_rate: rate(args.job_rate),
        ..RendezvousLimits::default()
    }
}

/// Raises the soft limit of open files to the hard one: each control connection takes a descriptor.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    // It is often 1024 for the sake of select(2), which nothing here uses.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

fn print_addresses(
    args: &ServeArgs,
    running: &RunningRendezvous,
    tls: bool,
) -> Result<(), CommandError> {
    let scheme = if tls { "wss" } else { "ws" };
    let url = format!("{scheme}://{}", running.addr);
    let observers: Vec<_> = running.observers.iter().map(|one| json!({"transport": if one.transport == nearpath_p2p::Transport::Udp { "udp" } else { "tcp" }, "addr": one.addr})).collect();
    if args.json {
        return output::print(&format!(
            "{}\n",
            json!({"rendezvous": url, "observers": observers, "metrics": format!("http://{}/metrics", args.admin_listen), "key": args.key.key_path()})
        ));
    }
    eprintln!("nearpath rendezvous {} is up", env!("CARGO_PKG_VERSION"));
    eprintln!("  workers  {url}");
    for one in running
        .observers
        .iter()
        .filter(|one| !one.second_port && one.transport == nearpath_p2p::Transport::Udp)
    {
        eprintln!("  probes   {} and the next port (UDP and TCP)", one.addr);
    }
    eprintln!("  metrics  http://{}/metrics", args.admin_listen);
    eprintln!("  key      {}", args.key.key_path().display());
    Ok(())
}
