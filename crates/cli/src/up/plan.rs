//! What is ready to use: defaults filled in, contradictions refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nearpath_daemon::logs::Format;
use nearpath_gateway::Settings;
use nearpath_kernel::sandbox::Isolation;
use thiserror::Error;

use super::adapters::AdapterArgs;
use super::args::{CallerArgs, Forward, Switch, UpArgs};
use super::cpu::GatewayCpu;

/// Why `nearpath up` does not start.
#[derive(Debug, Error)]
pub(super) enum UpError {
    #[error("--insecure is for loopback addresses only, and {0} is not one: drop --insecure, or listen on 127.0.0.1")]
    Insecure(SocketAddr),
    #[error("--mqtt-listen {0}: --insecure leaves no password for it; --mqtt-anonymous opens it to everybody")]
    OpenMqtt(SocketAddr),
    #[error("--coap-listen {0}: CoAP has no passwords; --coap-anonymous opens it to everybody who reaches it")]
    OpenCoap(SocketAddr),
    #[error("the watchdog {0} is missing: `make build` puts it beside nearpath, --watchdog names another place")]
    NoWatchdog(PathBuf),
    #[error(
        "no namespaces: this process may not make them, nor a user namespace of its own ({0}). `nearpath doctor` says what to do; --no-sandbox runs functions without isolation"
    )]
    NoIsolation(std::io::Error),
    #[error(
        "--forward tc: the kernel takes programs from root alone, and this process is not root on the machine: run as root, or without --forward"
    )]
    ForwardNeedsRoot,
    #[error("{what} {addr}: {error}")]
    Listen { what: &'static str, addr: SocketAddr, error: std::io::Error },
    #[error("{what}: {error}")]
    Part { what: &'static str, error: Box<dyn std::error::Error + Send + Sync> },
}

impl UpError {
    /// Names the option and the address that cannot be listened on.
    pub(super) fn listen(what: &'static str, addr: SocketAddr) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Listen { what, addr, error }
    }

    /// Names the part of the house that failed.
    pub(super) fn part<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |error| Self::Part { what, error: error.into() }
    }
}

/// TLS as typed: address, certificate chain, key.
pub(super) struct Tls {
    pub(super) listen: SocketAddr,
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) http3: bool,
}

/// Everything that the house is built from.
pub(super) struct Plan {
    pub(super) data_dir: PathBuf,
    pub(super) take_over: bool,
    pub(super) listen: SocketAddr,
    pub(super) tls: Option<Tls>,
    pub(super) admin_listen: SocketAddr,
    pub(super) insecure: bool,
    pub(super) secret_mount_path: Option<PathBuf>,
    pub(super) isolation: Isolation,
    pub(super) threads: usize,
    pub(super) gateway_cpu: GatewayCpu,
    pub(super) forward: Forward,
    pub(super) access_log: Option<PathBuf>,
    pub(super) certificate_lifetime: Duration,
    pub(super) watchdog: PathBuf,
    pub(super) gateway: Settings,
    pub(super) adapters: AdapterArgs,
    pub(super) log_format: Format,
}

impl Plan {
    /// Fills in defaults. Enters a user namespace when there is no root: that is possible only now, while the process has
    /// one thread.
    pub(super) fn from_args(args: UpArgs) -> Result<Self, UpError> {
        let http3 = args.http3 == Switch::On;
        let tls = args.tls_listen.zip(args.tls_cert.zip(args.tls_key));
        let tls = tls.map(|(listen, (cert, key))| Tls { listen, cert, key, http3 });
        let public = [Some(args.listen), tls.as_ref().map(|tls| tls.listen)];
        if let Some(addr) = public.into_iter().flatten().find(|addr| args.insecure && !addr.ip().is_loopback()) {
            return Err(UpError::Insecure(addr));
        }
        args.adapters.check(args.insecure)?;
        let (watchdog, isolation) = (watchdog(args.watchdog)?, isolation(args.no_sandbox)?);
        if args.forward == Forward::Tc && isolation != Isolation::Root {
            return Err(UpError::ForwardNeedsRoot);
        }
        Ok(Self {
            data_dir: data_dir(args.data_dir)?,
            take_over: args.take_over,
            listen: args.listen,
            tls,
            admin_listen: args.admin_listen,
            insecure: args.insecure,
            secret_mount_path: args.secret_mount_path,
            watchdog,
            isolation,
            threads: args.threads.unwrap_or_else(cores).max(1),
            gateway_cpu: args.gateway_cpu,
            forward: args.forward,
            access_log: args.access_log,
            certificate_lifetime: args.certificate_lifetime,
            gateway: gateway(&args.callers, args.drain_timeout),
            adapters: args.adapters,
            log_format: if args.log_json { Format::Json } else { Format::Text },
        })
    }
}

/// As seen from anywhere: instances have another working directory.
fn data_dir(given: Option<PathBuf>) -> Result<PathBuf, UpError> {
    std::path::absolute(given.unwrap_or_else(crate::default_data_dir)).map_err(UpError::part("--data-dir"))
}

fn gateway(callers: &CallerArgs, drain_timeout: Duration) -> Settings {
    let CallerArgs { header_timeout, idle_timeout, write_timeout, body_idle_timeout, .. } = *callers;
    Settings {
        header_timeout,
        idle_timeout,
        write_timeout,
        body_idle_timeout,
        max_connections: callers.max_connections,
        retry_above: callers.http3_retry_above,
        drain_timeout,
        ..Settings::default()
    }
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn watchdog(given: Option<PathBuf>) -> Result<PathBuf, UpError> {
    let beside = || std::env::current_exe().map(|exe| exe.with_file_name("nearpath-watchdog")).unwrap_or_default();
    let path = given.unwrap_or_else(beside);
    path.canonicalize().map_err(|_| UpError::NoWatchdog(path))
}

fn isolation(no_sandbox: bool) -> Result<Isolation, UpError> {
    if no_sandbox {
        return Ok(Isolation::None);
    }
    if nearpath_kernel::probe::isolation() == Isolation::Root {
        return Ok(Isolation::Root);
    }
    nearpath_kernel::sandbox::enter_user_namespace().map_err(UpError::NoIsolation)?;
    Ok(Isolation::UserNamespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_the_same_from_everywhere() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(data_dir(Some("state/here".into())).unwrap(), here.join("state/here"));
        assert_eq!(data_dir(Some("/var/lib/nearpath".into())).unwrap(), PathBuf::from("/var/lib/nearpath"));
    }

    #[test]
    fn the_gateway_gets_the_limits_that_were_typed() {
        let seconds = Duration::from_secs;
        let typed = CallerArgs {
            header_timeout: seconds(1),
            idle_timeout: seconds(2),
            write_timeout: seconds(3),
            body_idle_timeout: seconds(4),
            max_connections: 5,
            http3_retry_above: 7,
        };
        let got = gateway(&typed, seconds(6));
        let times = [got.header_timeout, got.idle_timeout, got.write_timeout, got.body_idle_timeout, got.drain_timeout];
        assert_eq!((times, got.max_connections, got.retry_above), ([1, 2, 3, 4, 6].map(seconds), 5, 7));
    }
}
