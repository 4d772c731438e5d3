//! Options of `nearpath up` as typed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nearpath_server::CpuQuota;
use nearpath_types::duration;
use nearpath_types::quantity::{self, InvalidQuantity};

use super::device_args::{DeviceArgs, connection_limit};

/// Options of `nearpath up`.
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    /// Store functions, secrets and replica counts in this folder; each process needs its own.
    /// Default: /var/lib/nearpath as root, else ~/.local/state/nearpath
    #[arg(long, env = "NEARPATH_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Take over from the process that uses the data directory, if there is one: an upgrade that
    /// loses no request. The old process finishes in-flight requests (up to --drain-timeout) and
    /// exits
    #[arg(long, conflicts_with = "no_sandbox")]
    pub take_over: bool,

    /// Serve functions (for all clients) and the API (for the administrator) at this address
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,

    /// Serve both with TLS (HTTP/1.1 and HTTP/2) at this address; needs --tls-cert and --tls-key
    #[arg(
        long,
        value_name = "ADDR:PORT",
        requires = "tls_cert",
        requires = "tls_key"
    )]
    pub tls_listen: Option<SocketAddr>,

    /// Read the certificate chain from this file (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Read the private key from this file (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Serve HTTP/3 on the port of --tls-listen, over UDP
    #[arg(long, default_value = "on", value_enum, value_name = "on|off")]
    pub http3: Toggle,

    /// Serve /metrics and /healthz, for the operator, at this address
    #[arg(long, default_value = "127.0.0.1:8082", value_name = "ADDR:PORT")]
    pub admin_listen: SocketAddr,

    /// Serve the API without a password. Only on loopback addresses, and only where you are the
    /// only user: anyone who can deploy can read every file this process can read
    #[arg(long)]
    pub insecure: bool,

    /// Read basic-auth-user and basic-auth-password from this folder; default: the data directory,
    /// where the first start creates them
    // The name that OpenFaaS's provider reads: its deployments work unchanged.
    #[arg(long, env = "secret_mount_path", value_name = "DIR")]
    pub secret_mount_path: Option<PathBuf>,

    /// Run functions without isolation, with your rights, on machines that permit no user
    /// namespaces
    #[arg(long)]
    pub no_sandbox: bool,

    /// Set the number of gateway threads; default: one per core
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Limit the CPU of all gateway threads together: auto (follows the request rate), thousandths
    /// of a core, or none (unlimited)
    #[arg(long, default_value = "none", value_name = "auto|MILLIS|none")]
    pub gateway_cpu: CpuQuota,

    /// Choose the packet path between gateway and instances. none: the gateway's sockets are at the
    /// instances' veth pairs. tc: the gateway has its own network namespace, and a BPF program
    /// moves and counts packets past the host's stack. tc needs root and Linux 6.6
    #[arg(
        long,
        default_value = "none",
        value_enum,
        value_name = "tc|none",
        conflicts_with = "no_sandbox"
    )]
    pub forward: ForwardArg,

    /// Write one JSON line per request to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,

    /// Limit the memory of each instance of functions that declare no `limits.memory`; `none`: no
    /// limit
    #[arg(long, value_name = "SIZE|none", default_value = "1Gi", value_parser = parse_default_memory)]
    pub default_memory: DefaultLimit,

    /// Limit the CPU of each instance of functions that declare no `limits.cpu`: cores or
    /// thousandths (`500m`); `none`: no limit
    #[arg(long, value_name = "CPU|none", default_value = "none", value_parser = parse_default_cpu)]
    pub default_cpu: DefaultLimit,

    /// Limit the processes and threads of each instance of functions that declare no `limits.pids`
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u64).range(1..))]
    pub default_pids: u64,

    /// Show this folder to every function, read-only, for example /opt/python; repeat it for
    /// several. Of the host's other folders, functions see only /usr
    #[arg(long = "share-dir", value_name = "DIR")]
    pub share_dirs: Vec<PathBuf>,

    /// Keep this much of each function's log on disk, such as 512Ki or 8Mi
    #[arg(long, default_value = "1Mi", value_parser = log_size, value_name = "SIZE")]
    pub function_log_size: u64,

    /// Keep this much of all functions' logs on disk; the oldest go first; 0: keep none on disk
    #[arg(long, default_value = "256Mi", value_parser = total_log_size, value_name = "SIZE")]
    pub total_log_size: u64,

    /// Run functions with this watchdog; default: nearpath-watchdog next to this program
    #[arg(long, env = "NEARPATH_WATCHDOG", value_name = "FILE")]
    pub watchdog: Option<PathBuf>,

    /// Set the lifetime of the certificates of gateway and instances for QUIC and TLS, 3s to 24h;
    /// they are renewed after two thirds of it
    #[arg(long, default_value = "24h", value_parser = certificate_lifetime, value_name = "DURATION")]
    pub certificate_lifetime: Duration,

    /// Wait this long for running requests after SIGTERM; then they are aborted
    #[arg(long, default_value = "30s", value_parser = duration::parse_duration, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Log in JSON
    #[arg(long)]
    pub log_json: bool,

    /// Limits of callers' connections.
    #[command(flatten)]
    pub callers: CallerArgs,

    /// MQTT and CoAP.
    #[command(flatten)]
    pub devices: DeviceArgs,
}

/// Packet path between gateway and instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ForwardArg {
    /// Gateway and instances are ends of one veth pair.
    #[default]
    None,
    /// A BPF program moves packets between two pairs.
    Tc,
}

/// A feature that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Toggle {
    /// enabled
    On,
    /// disabled
    Off,
}

/// Limits of callers' connections. The defaults are those of [`nearpath_server::GatewaySettings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Limits of callers' connections")]
pub struct CallerArgs {
    /// Limit the time from a request's first byte to the end of its head; also from connecting to
    /// the first request
    #[arg(long, default_value = "10s", value_parser = time_limit, value_name = "DURATION")]
    pub header_timeout: Duration,

    /// Close connections without a request after this time
    #[arg(long, default_value = "75s", value_parser = time_limit, value_name = "DURATION")]
    pub idle_timeout: Duration,

    /// Abort callers that read nothing of their response for this time
    #[arg(long, default_value = "60s", value_parser = time_limit, value_name = "DURATION")]
    pub write_timeout: Duration,

    /// Limit pauses inside a request's body
    #[arg(long, default_value = "30s", value_parser = time_limit, value_name = "DURATION")]
    pub body_idle_timeout: Duration,

    /// Cut callers whose request bodies come with fewer bytes per second; 0: no minimum
    #[arg(long, default_value = "240", value_name = "BYTES")]
    pub min_body_rate: u64,

    /// Cut callers that read fewer bytes per second of a waiting response; 0: no minimum
    #[arg(long, default_value = "240", value_name = "BYTES")]
    pub min_read_rate: u64,

    /// Let callers fall behind these rates for this time
    #[arg(long, default_value = "10s", value_parser = time_limit, value_name = "DURATION")]
    pub min_rate_grace: Duration,

    /// Limit the connections per address, up to 1000000; one client has at most half of them. Of
    /// further ones a few serve the administrator, the others wait in the kernel's backlog
    #[arg(long, default_value = "16384", value_parser = connection_limit, value_name = "N")]
    pub max_connections: usize,

    /// Make new clients prove their address first above this number of concurrent HTTP/3
    /// handshakes, which costs a round trip; 0: always
    #[arg(long, default_value = "512", value_name = "N")]
    pub http3_retry_above: usize,
}

/// Longest time limit; a longer one would bound nothing.
const MAX_LIMIT_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);

fn time_limit(text: &str) -> Result<Duration, String> {
    match duration::parse_duration(text) {
        Ok(limit) if limit.is_zero() => {
            Err("every request would exceed it: use a longer time, such as 30s".to_owned())
        }
        // The runtime's timers have a resolution of 1 ms.
        Ok(limit) if !(Duration::from_millis(1)..=MAX_LIMIT_TIMEOUT).contains(&limit) => {
            Err("expected a time from 1ms to 24h".to_owned())
        }
        Ok(limit) => Ok(limit),
        Err(error) => Err(error.to_string()),
    }
}

/// Smallest size of a log; a line may have a few KiB.
const MIN_LOG_BYTES: u64 = 64 << 10;

fn log_size(text: &str) -> Result<u64, String> {
    match quantity::parse_memory(text) {
        Ok(bytes) if bytes < MIN_LOG_BYTES => Err("expected a size of at least 64Ki".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn total_log_size(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        size => log_size(size),
    }
}

fn certificate_lifetime(text: &str) -> Result<Duration, String> {
    // Certificates count in seconds: a shorter one could expire before its renewal. A longer one
    // would be valid too long after a theft.
    match duration::parse_duration(text) {
        Ok(lifetime) if (Duration::from_secs(3)..=MAX_LIMIT_TIMEOUT).contains(&lifetime) => {
            Ok(lifetime)
        }
        Ok(_) => Err("expected a time from 3s to 24h".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use nearpath_server::GatewaySettings;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        up: UpArgs,
    }

    fn parse_limits(options: &[&str]) -> Result<CallerArgs, String> {
        let argv = ["up"].iter().chain(options);
        TestCommand::try_parse_from(argv)
            .map(|parsed| parsed.up.callers)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_gateways() {
        let GatewaySettings {
            header_timeout,
            idle_timeout,
            write_timeout,
            body_idle_timeout,
            min_body_rate,
            min_read_rate,
            min_rate_grace,
            ..
        } = GatewaySettings::default();
        let GatewaySettings {
            max_connections,
            retry_above_handshakes: http3_retry_above,
            ..
        } = GatewaySettings::default();
        let defaults = CallerArgs {
            header_timeout,
            idle_timeout,
            write_timeout,
            body_idle_timeout,
            min_body_rate,
            min_read_rate,
            min_rate_grace,
            max_connections,
            http3_retry_above,
        };
        assert_eq!(parse_limits(&[]).unwrap(), defaults);
    }

    #[test]
    fn certificates_live_from_3_seconds_to_a_day() {
        let lifetime = |text| {
            TestCommand::try_parse_from(["up", "--certificate-lifetime", text])
                .map(|parsed| parsed.up.certificate_lifetime)
        };
        assert_eq!(lifetime("3s").unwrap(), Duration::from_secs(3));
        for bad in ["2999ms", "25h", "soon"] {
            assert!(
                lifetime(bad)
                    .unwrap_err()
                    .to_string()
                    .contains("--certificate-lifetime")
            );
        }
    }

    #[test]
    fn logs_on_disk_have_sizes() {
        let sizes = |options: &[&str]| {
            TestCommand::try_parse_from(["up"].iter().chain(options))
                .map(|parsed| (parsed.up.function_log_size, parsed.up.total_log_size))
        };
        assert_eq!(sizes(&[]).unwrap(), (1 << 20, 256 << 20));
        assert_eq!(sizes(&["--total-log-size=0"]).unwrap().1, 0);
        for bad in [
            "--function-log-size=0",
            "--total-log-size=63Ki",
            "--total-log-size=all",
        ] {
            let text = sizes(&[bad]).unwrap_err().to_string();
            assert!(text.contains("-log-size"), "{text}");
        }
    }

    #[test]
    fn useless_limits_are_rejected() {
        for option in [
            "--header-timeout",
            "--idle-timeout",
            "--write-timeout",
            "--body-idle-timeout",
        ] {
            assert!(parse_limits(&[option, "1m30s"]).is_ok());
            for (bad, reason) in [
                ("0", "every request would exceed it"),
                ("soon", "invalid duration"),
                ("1ns", "1ms"),
                ("25h", "24h"),
            ] {
                let text = parse_limits(&[option, bad]).unwrap_err();
                assert!(text.contains(reason) && text.contains(option), "{text}");
            }
        }
        for bad in ["0", "many", "1000001", "-1", "18446744073709551616"] {
            let text = parse_limits(&[&format!("--max-connections={bad}")]).unwrap_err();
            assert!(
                text.contains("from 1 to 1000000") && text.contains("--max-connections"),
                "{text}"
            );
        }
        assert_eq!(
            parse_limits(&["--max-connections", "7"])
                .unwrap()
                .max_connections,
            7
        );
    }
}

/// A limit as it was written; `None`: no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultLimit(pub Option<String>);

fn parse_default_memory(text: &str) -> Result<DefaultLimit, String> {
    parse_default(text, quantity::parse_memory)
}

fn parse_default_cpu(text: &str) -> Result<DefaultLimit, String> {
    parse_default(text, quantity::parse_cpu)
}

fn parse_default(
    text: &str,
    parse: impl Fn(&str) -> Result<u64, InvalidQuantity>,
) -> Result<DefaultLimit, String> {
    if text == "none" {
        return Ok(DefaultLimit(None));
    }
    parse(text).map_err(|error| error.to_string())?;
    Ok(DefaultLimit(Some(text.to_owned())))
}
