//! What was typed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use nearpath_meet::server::Place;
use nearpath_meet::ticket::Job;
use nearpath_types::duration;

/// Options of `rendezvous`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RendezvousArgs {
    /// What to do other than to serve.
    #[command(subcommand)]
    pub command: Option<RendezvousCommand>,
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What to do other than to serve.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum RendezvousCommand {
    /// Print a ticket that lets one worker of a job in
    Ticket(TicketArgs),
}

/// Options of `rendezvous`, when it serves.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct ServeArgs {
    /// Address for lines and relays (WebSocket)
    #[arg(long, default_value = "127.0.0.1:7843", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,

    /// Certificate chain, PEM: lines and relays have TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// No TLS on an address that is not loopback: a proxy in front has it. Tickets are readable between the two
    #[arg(long, conflicts_with = "tls_cert")]
    pub behind_proxy: bool,

    /// Where workers ask how they are seen: this port and the next, over UDP and TCP; `=IP` is what workers reach it by, if that is
    /// another address. Twice: on two addresses, which tells more kinds of NAT apart [default: --listen's address, port 7844]
    #[arg(long, value_name = "ADDR:PORT[=IP]", value_parser = place)]
    pub observe: Vec<Place>,

    /// The operator's address: /metrics and /healthz
    #[arg(long, default_value = "127.0.0.1:7842", value_name = "ADDR:PORT")]
    pub admin_listen: SocketAddr,

    #[command(flatten)]
    pub key: KeyArgs,

    /// Lines at a time
    #[arg(long, default_value = "50000", value_name = "N", help_heading = "Limits")]
    pub lines: usize,

    /// Lines of one job
    #[arg(long, default_value = "20000", value_name = "N", help_heading = "Limits")]
    pub lines_of_a_job: usize,

    /// New connections in a second of strangers from one address, and of one worker with a ticket; ten times as many at once
    #[arg(long, default_value = "200", value_name = "N", help_heading = "Limits")]
    pub arrivals: u64,

    /// Relays at a time
    #[arg(long, default_value = "10000", value_name = "N", help_heading = "Limits")]
    pub relays: usize,

    /// Bytes a second over one relay, both directions together, and of one line; 0: no limit
    #[arg(long, default_value = "0", value_name = "BYTES", help_heading = "Limits")]
    pub relay_rate: u64,

    /// Bytes a second over all relays and lines of a job; 0: no limit
    #[arg(long, default_value = "0", value_name = "BYTES", help_heading = "Limits")]
    pub job_rate: u64,

    /// A relay over which nothing goes for so long is closed
    #[arg(long, default_value = "10m", value_parser = duration::parse, value_name = "DURATION", help_heading = "Limits")]
    pub relay_idle: Duration,

    /// How long open relays may go on after SIGTERM
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Print where it listens as one line of JSON on standard output
    #[arg(long)]
    pub json: bool,

    /// Log in JSON
    #[arg(long)]
    pub log_json: bool,
}

/// Where the key is.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// File with the key by which tickets are known; made at the first start, readable by its owner only [default: rendezvous.key in the
    /// data directory]
    #[arg(long, env = "NEARPATH_RENDEZVOUS_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
}

impl KeyArgs {
    /// The file.
    pub(super) fn path(&self) -> PathBuf {
        self.key.clone().unwrap_or_else(|| crate::default_data_dir().join("rendezvous.key"))
    }
}

/// Options of `rendezvous ticket`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct TicketArgs {
    /// Job: workers of one job can meet
    #[arg(long, value_name = "NAME")]
    pub job: Job,
    /// Worker: NAME/NUMBER, or its identity (spiffe://...)
    #[arg(long, value_name = "WORKER")]
    pub worker: String,
    /// How long it is good
    #[arg(long = "for", default_value = "15m", value_parser = duration::parse, value_name = "DURATION")]
    pub life: Duration,
    /// Reports that name nobody go to this worker
    #[arg(long)]
    pub leader: bool,
    /// Print JSON: the ticket, the identity in it and its end
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub key: KeyArgs,
}

/// `ADDR:PORT` or `ADDR:PORT=IP`.
fn place(text: &str) -> Result<Place, String> {
    let (bind, public) = match text.split_once('=') {
        Some((bind, public)) => {
            (bind, Some(public.parse::<IpAddr>().map_err(|_| format!("{public:?} is no IP address"))?))
        }
        None => (text, None),
    };
    let bind: SocketAddr = bind.parse().map_err(|_| format!("{bind:?} is not ADDR:PORT"))?;
    if bind.port() == u16::MAX {
        Err("the next port is taken, too: choose a lower one".to_owned())
    } else {
        Ok(Place { bind, public })
    }
}
