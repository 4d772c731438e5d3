//! `gateway`: nearpath's gateway without node and controller, in a separate process.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use nearpath_daemon::drain;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::{Gateway, GatewayListener, GatewaySettings, ListenerZone, NoControl, fixed};
use nearpath_types::FunctionPolicy;

use super::BenchOutcome;

/// Options of `gateway`.
#[derive(clap::Args)]
pub(crate) struct BareGatewayArgs {
    /// Listen at this address
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR:PORT")]
    listen: SocketAddr,

    /// Add an instance of a function; may be repeated
    #[arg(long, required = true, value_name = "NAME=ADDR:PORT")]
    fixed: Vec<String>,

    /// Set the number of serving threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Serves until SIGTERM, then drains.
pub(crate) fn run(args: &BareGatewayArgs) -> BenchOutcome {
    let threads = args.threads.unwrap_or_else(crate::peers::count_cores);
    let endpoints = args
        .fixed
        .iter()
        .map(|text| fixed::parse_endpoint(text))
        .collect::<Result<Vec<_>, _>>()?;
    let gateway = Gateway::new(
        GatewaySettings::default(),
        Arc::new(NoControl),
        &MetricsRegistry::default(),
    );
    // Published once: the data path is measured without a controller that changes it.
    gateway.publish(&fixed::build_snapshot(
        &endpoints,
        &FunctionPolicy::default(),
    ));
    // A socket for each thread (SO_REUSEPORT), as the node opens them.
    let sockets = nearpath_wire::sockets::bind_tcp(args.listen, threads)?;
    let listener = GatewayListener {
        zone: ListenerZone::Public,
        tls: None,
        sockets,
        http3: None,
        node_quic: None,
        handed_over: None,
    };
    let (trigger, watch) = drain::channel();
    let serving = gateway.serve(vec![listener], threads, Arc::new(|| Ok(())), watch)?;
    super::on_one_thread(async {
        let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        // SIGTERM and not SIGKILL, so that connections are drained and the load sees no resets.
        end.recv().await;
        trigger.drain().await;
        Ok(ExitCode::SUCCESS)
    })?;
    serving.join_all()?;
    Ok(ExitCode::SUCCESS)
}
