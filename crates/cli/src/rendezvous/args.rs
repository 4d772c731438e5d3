//! Options of `nearpath rendezvous` as typed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use nearpath_p2p::ticket::JobName;
use nearpath_rendezvous::ObserverBinding;
use nearpath_types::duration;

/// Options of `rendezvous`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RendezvousArgs {
    /// A subcommand instead of serving.
    #[command(subcommand)]
    pub command: Option<RendezvousCommand>,
    /// Options for serving.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Subcommands of `rendezvous`.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum RendezvousCommand {
    /// Print a ticket that admits one worker of a job
    Ticket(TicketArgs),
}

/// Options for serving.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct ServeArgs {
    /// Serve control connections and relays (WebSocket) at this address
    #[arg(long, default_value = "127.0.0.1:7843", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,

    /// Serve them with TLS, with the certificate chain in this file (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Read the private key from this file (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Serve without TLS on an address that is not loopback: a proxy in front terminates TLS.
    /// Tickets are readable between the two
    #[arg(long, conflicts_with = "tls_cert")]
    pub behind_proxy: bool,

    /// Answer reflexive-address probes (STUN-like) at this address: this port and the next, over
    /// UDP and TCP; `=IP` is the address under which workers reach it, if it differs. Twice: two
    /// addresses distinguish more kinds of NAT [default: --listen's address, port 7844]
    #[arg(long, value_name = "ADDR:PORT[=IP]", value_parser = parse_observer)]
    pub observe: Vec<ObserverBinding>,

    /// Serve /metrics and /healthz, for the operator, at this address
    #[arg(long, default_value = "127.0.0.1:7842", value_name = "ADDR:PORT")]
    pub admin_listen: SocketAddr,

    #[command(flatten)]
    pub key: KeyArgs,

    /// Limit the number of control connections
    #[arg(
        long,
        default_value = "50000",
        value_name = "N",
        help_heading = "Limits"
    )]
    pub max_connections: usize,

    /// Limit the number of control connections of one job
    #[arg(
        long,
        default_value = "20000",
        value_name = "N",
        help_heading = "Limits"
    )]
    pub max_job_connections: usize,

    /// Limit the new connections per second from one address, and of one worker with a ticket;
    /// bursts may be ten times as large
    #[arg(long, default_value = "200", value_name = "N", help_heading = "Limits")]
    pub connection_rate: u64,

    /// Limit the number of relays
    #[arg(
        long,
        default_value = "10000",
        value_name = "N",
        help_heading = "Limits"
    )]
    pub max_relays: usize,

    /// Limit the bytes per second of one relay, both directions together, and of one control
    /// connection; 0: no limit
    #[arg(
        long,
        default_value = "0",
        value_name = "BYTES",
        help_heading = "Limits"
    )]
    pub relay_rate: u64,

    /// Limit the bytes per second of all relays and control connections of a job; 0: no limit
    #[arg(
        long,
        default_value = "0",
        value_name = "BYTES",
        help_heading = "Limits"
    )]
    pub job_rate: u64,

    /// Close relays without traffic after this time
    #[arg(long, default_value = "10m", value_parser = duration::parse_duration, value_name = "DURATION", help_heading = "Limits")]
    pub relay_idle: Duration,

    /// Wait this long for open relays after SIGTERM; then they are closed
    #[arg(long, default_value = "30s", value_parser = duration::parse_duration, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Print the addresses as one line of JSON on standard output
    #[arg(long)]
    pub json: bool,

    /// Log in JSON
    #[arg(long)]
    pub log_json: bool,
}

/// The key file.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// Sign tickets with the key in this file; created at the first start, readable by its owner
    /// only [default: rendezvous.key in the data directory]
    #[arg(long, env = "NEARPATH_RENDEZVOUS_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
}

impl KeyArgs {
    /// The key file, or its default.
    pub(super) fn key_path(&self) -> PathBuf {
        self.key
            .clone()
            .unwrap_or_else(|| crate::default_data_dir().join("rendezvous.key"))
    }
}

/// Options of `rendezvous ticket`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct TicketArgs {
    /// Name the job; workers of one job can connect to each other
    #[arg(long, value_name = "NAME")]
    pub job: JobName,
    /// Name the worker: NAME/NUMBER, or its identity (spiffe://...)
    #[arg(long, value_name = "WORKER")]
    pub worker: String,
    /// Set the validity of the ticket
    #[arg(long = "for", default_value = "15m", value_parser = duration::parse_duration, value_name = "DURATION")]
    pub validity: Duration,
    /// Send reports without a recipient to this worker
    #[arg(long)]
    pub leader: bool,
    /// Print JSON: the ticket, its identity and its expiry
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub key: KeyArgs,
}

/// Parses `ADDR:PORT` or `ADDR:PORT=IP`.
fn parse_observer(text: &str) -> Result<ObserverBinding, String> {
    let (bind, public) = match text.split_once('=') {
        Some((bind, public)) => (
            bind,
            Some(
                public
                    .parse::<IpAddr>()
                    .map_err(|_| format!("invalid IP address {public:?}"))?,
            ),
        ),
        None => (text, None),
    };
    let bind: SocketAddr = bind
        .parse()
        .map_err(|_| format!("invalid address {bind:?}: expected ADDR:PORT"))?;
    // Probes use two ports: a NAT's mapping may depend on the destination's port.
    if bind.port() == u16::MAX {
        Err("invalid port 65535: the next port is used as well; choose a lower one".to_owned())
    } else {
        Ok(ObserverBinding { bind, public })
    }
}
