//! What was typed.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Options of `nearpath up`.
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    /// Where state lives: functions, secrets, scale. One process a directory. Default: /var/lib/nearpath as root, else
    /// ~/.local/state/nearpath
    #[arg(long, env = "NEARPATH_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Public address: functions for everybody, the API for the administrator
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,

    /// Public address with TLS (HTTP/1.1 and HTTP/2); needs --tls-cert and --tls-key
    #[arg(long, value_name = "ADDR:PORT", requires = "tls_cert", requires = "tls_key")]
    pub tls_listen: Option<SocketAddr>,

    /// Certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Private key, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// The operator's address: /metrics and /healthz
    #[arg(long, default_value = "127.0.0.1:8082", value_name = "ADDR:PORT")]
    pub admin_listen: SocketAddr,

    /// No password for the API. Only with loopback addresses, and only where you are the only user: whoever
    /// deploys can read every folder that this process can read
    #[arg(long)]
    pub insecure: bool,

    /// Folder with basic-auth-user and basic-auth-password; default: made in the data directory at the first start
    #[arg(long, env = "secret_mount_path", value_name = "DIR")]
    pub secret_mount_path: Option<PathBuf>,

    /// Run functions without any isolation, with your rights, where not even user namespaces are permitted
    #[arg(long)]
    pub no_sandbox: bool,

    /// Gateway threads; default: one a core
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Write one JSON line a request to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,

    /// The watchdog to run functions with; default: nearpath-watchdog beside this program
    #[arg(long, env = "NEARPATH_WATCHDOG", value_name = "FILE")]
    pub watchdog: Option<PathBuf>,

    /// How long requests may take to finish after SIGTERM before they are cut
    #[arg(long, default_value = "30s", value_parser = nearpath_types::duration::parse, value_name = "DURATION")]
    pub drain_timeout: std::time::Duration,

    /// Log in JSON
    #[arg(long)]
    pub log_json: bool,
}
