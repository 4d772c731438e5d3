//! What was typed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nearpath_types::duration;

use super::adapters::AdapterArgs;
use super::cpu::GatewayCpu;

/// Options of `nearpath up`.
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    /// Where state lives: functions, secrets, scale. One process a directory. Default: /var/lib/nearpath as root, else
    /// ~/.local/state/nearpath
    #[arg(long, env = "NEARPATH_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Take over from the process that has the data directory, if there is one: an upgrade that loses no request. That one answers what it was
    /// asked, for --drain-timeout at most, and ends
    #[arg(long, conflicts_with = "no_sandbox")]
    pub take_over: bool,

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

    /// HTTP/3 on the port of --tls-listen, over UDP
    #[arg(long, default_value = "on", value_enum, value_name = "on|off")]
    pub http3: Switch,

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

    /// How much CPU the gateway's threads may use together: auto (follows the rate of requests), thousandths of a
    /// core, or none (no limit)
    #[arg(long, default_value = "none", value_name = "auto|MILLIS|none")]
    pub gateway_cpu: GatewayCpu,

    /// How packets get from the gateway to instances: none (the gateway's sockets are where the instances' veth pairs end)
    /// or tc (the gateway has a network namespace of its own, and a BPF program moves and counts packets between the two
    /// past the host's stack). tc needs root and Linux 6.6
    #[arg(long, default_value = "none", value_enum, value_name = "tc|none", conflicts_with = "no_sandbox")]
    pub forward: Forward,

    /// Write one JSON line a request to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,

    /// The watchdog to run functions with; default: nearpath-watchdog beside this program
    #[arg(long, env = "NEARPATH_WATCHDOG", value_name = "FILE")]
    pub watchdog: Option<PathBuf>,

    /// How long the certificates are good that gateway and instances show each other over QUIC and TLS; renewed after two
    /// thirds of it, 3s to 24h
    #[arg(long, default_value = "24h", value_parser = lifetime, value_name = "DURATION")]
    pub certificate_lifetime: Duration,

    /// How long requests may take to finish after SIGTERM before they are cut
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Log in JSON
    #[arg(long)]
    pub log_json: bool,

    /// What callers' connections may take.
    #[command(flatten)]
    pub callers: CallerArgs,

    /// MQTT and CoAP.
    #[command(flatten)]
    pub adapters: AdapterArgs,
}

/// What stands between the gateway and instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Forward {
    /// Nothing: both are ends of one veth pair.
    #[default]
    None,
    /// `bpf/tc_forward.c` between two pairs.
    Tc,
}

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// Limits of callers' connections: what nobody may hold for ever. The defaults are those of
/// [`nearpath_gateway::Settings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Limits of callers' connections")]
pub struct CallerArgs {
    /// From a request's first byte to the end of its head; also from connecting to the first request
    #[arg(long, default_value = "10s", value_parser = limit, value_name = "DURATION")]
    pub header_timeout: Duration,

    /// A connection without a request is closed after this
    #[arg(long, default_value = "75s", value_parser = limit, value_name = "DURATION")]
    pub idle_timeout: Duration,

    /// A caller that takes nothing of its answer for so long is cut off
    #[arg(long, default_value = "60s", value_parser = limit, value_name = "DURATION")]
    pub write_timeout: Duration,

    /// Longest silence inside a request's body
    #[arg(long, default_value = "30s", value_parser = limit, value_name = "DURATION")]
    pub body_idle_timeout: Duration,

    /// Connections at a time on one address, up to 1000000; more wait in the kernel's backlog
    #[arg(long, default_value = "16384", value_parser = connections, value_name = "N")]
    pub max_connections: usize,

    /// Handshakes of HTTP/3 under way from which on newcomers prove their address first, at the cost of a round trip; 0: always
    #[arg(long, default_value = "512", value_name = "N")]
    pub http3_retry_above: usize,
}

/// Beyond it a limit is none.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

fn limit(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(limit) if limit.is_zero() => {
            Err("it would cut off everybody at once: write a longer time, such as 30s".to_owned())
        }
        Ok(limit) if limit < Duration::from_millis(1) => Err("the shortest limit is 1ms".to_owned()),
        Ok(limit) if limit > LONGEST => Err("the longest limit is 24h".to_owned()),
        Ok(limit) => Ok(limit),
        Err(error) => Err(error.to_string()),
    }
}

/// Certificates count in seconds: a shorter one could end before it is renewed. A longer one would be good for too long where it is stolen.
fn lifetime(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(lifetime) if (Duration::from_secs(3)..=LONGEST).contains(&lifetime) => Ok(lifetime),
        Ok(_) => Err("write a time from 3s to 24h".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// As many as one machine has file descriptors for, at most.
pub(super) fn connections(text: &str) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| "write a number from 1 to 1000000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use nearpath_gateway::Settings;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        up: UpArgs,
    }

    fn typed(options: &[&str]) -> Result<CallerArgs, String> {
        let words = ["up"].iter().chain(options);
        Typed::try_parse_from(words).map(|typed| typed.up.callers).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_gateways() {
        let Settings { header_timeout, idle_timeout, write_timeout, body_idle_timeout, .. } = Settings::default();
        let Settings { max_connections, retry_above: http3_retry_above, .. } = Settings::default();
        let defaults = CallerArgs {
            header_timeout,
            idle_timeout,
            write_timeout,
            body_idle_timeout,
            max_connections,
            http3_retry_above,
        };
        assert_eq!(typed(&[]).unwrap(), defaults);
    }

    #[test]
    fn certificates_live_from_3_seconds_to_a_day() {
        let lifetime = |text| {
            Typed::try_parse_from(["up", "--certificate-lifetime", text]).map(|typed| typed.up.certificate_lifetime)
        };
        assert_eq!(lifetime("3s").unwrap(), Duration::from_secs(3));
        for bad in ["2999ms", "25h", "soon"] {
            assert!(lifetime(bad).unwrap_err().to_string().contains("--certificate-lifetime"));
        }
    }

    #[test]
    fn limits_that_are_none_are_refused() {
        for option in ["--header-timeout", "--idle-timeout", "--write-timeout", "--body-idle-timeout"] {
            assert!(typed(&[option, "1m30s"]).is_ok());
            for (bad, told) in
                [("0", "cut off everybody"), ("soon", "invalid duration"), ("1ns", "1ms"), ("25h", "24h")]
            {
                let text = typed(&[option, bad]).unwrap_err();
                assert!(text.contains(told) && text.contains(option), "{text}");
            }
        }
        for bad in ["0", "many", "1000001", "-1", "18446744073709551616"] {
            let text = typed(&[&format!("--max-connections={bad}")]).unwrap_err();
            assert!(text.contains("from 1 to 1000000") && text.contains("--max-connections"), "{text}");
        }
        assert_eq!(typed(&["--max-connections", "7"]).unwrap().max_connections, 7);
    }
}
