//! Turns the options of `nearpath up` into settings: fills in defaults, rejects contradictions.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nearpath_server::{
    AuthMode, CoapSettings, DeviceSettings, ForwardMode, GatewaySettings, LogFileBound,
    MqttSettings, PeerSettings, ServerSettings, SourceSettings, TlsSettings,
};
use nearpath_types::{InstanceResources, InvalidNodeName, NodeName};
use thiserror::Error;

use super::args::{CallerArgs, ForwardArg, Toggle, UpArgs};
use super::device_args::DeviceArgs;
use super::node_args::NodeArgs;

/// The options contradict each other, or a file they need is missing.
#[derive(Debug, Error)]
pub(super) enum SettingsError {
    #[error(
        "--insecure with {0}, which is no loopback address: remove --insecure, or listen on 127.0.0.1"
    )]
    Insecure(SocketAddr),
    #[error(
        "--mqtt-listen {0}: no password because of --insecure; use --mqtt-anonymous to accept every client"
    )]
    OpenMqtt(SocketAddr),
    #[error(
        "--coap-listen {0}: CoAP has no passwords; use --coap-anonymous to accept every client"
    )]
    OpenCoap(SocketAddr),
    #[error("missing watchdog {0}: run `make build`, or set its path with --watchdog")]
    NoWatchdog(PathBuf),
    #[error(
        "--share-dir {0}: name an existing folder by its absolute path, outside of the folders that functions have of their own (/dev, /etc, /home, /proc, /run, /tmp, /usr, /var)"
    )]
    ShareDir(PathBuf),
    #[error("--data-dir: {0}")]
    DataDir(io::Error),
    #[error("--source: {0}")]
    Source(io::Error),
    #[error("this machine's host name is no name of a node, set one with --name: {0}")]
    HostName(InvalidNodeName),
}

/// Checks the options and fills in defaults.
pub(super) fn from_args(args: UpArgs) -> Result<ServerSettings, SettingsError> {
    let tls = tls_settings(&args);
    // Both addresses serve the API; the TLS one protects its path, not its access.
    let public = [Some(args.listen), tls.as_ref().map(|tls| tls.listen)];
    if let Some(addr) = public
        .into_iter()
        .flatten()
        .find(|addr| args.insecure && !addr.ip().is_loopback())
    {
        return Err(SettingsError::Insecure(addr));
    }
    // Before any file is looked up: a dangerous combination is the more important error.
    check_devices(&args.devices, args.insecure)?;
    Ok(ServerSettings {
        watchdog: watchdog_path(args.watchdog)?,
        default_limits: InstanceResources {
            memory: args.default_memory.0,
            cpu: args.default_cpu.0,
            pids: Some(args.default_pids),
        },
        shared_dirs: shared_dirs(args.share_dirs)?,
        data_dir: absolute_data_dir(args.data_dir)?,
        take_over: args.take_over,
        listen: args.listen,
        tls,
        admin_listen: args.admin_listen,
        auth: auth(args.insecure, args.secret_mount_path),
        sandbox: !args.no_sandbox,
        threads: args.threads.map_or_else(available_cores, at_least_one),
        gateway_cpu: args.gateway_cpu,
        forward: match args.forward {
            ForwardArg::None => ForwardMode::None,
            ForwardArg::Tc => ForwardMode::Tc,
        },
        access_log: args.access_log,
        log_files: (args.total_log_size > 0).then_some(LogFileBound {
            function_bytes: args.function_log_size,
            total_bytes: args.total_log_size,
        }),
        certificate_lifetime: args.certificate_lifetime,
        gateway: gateway_settings(&args.callers, args.drain_timeout),
        devices: device_settings(&args.devices),
        source: None,
        peers: None,
    })
}

/// Checks the options of `nearpath node` and fills in defaults.
pub(super) fn from_node_args(args: NodeArgs) -> Result<ServerSettings, SettingsError> {
    // Not canonicalized: a link may lead to another folder later.
    let absolute = |path: PathBuf| {
        let path = std::path::absolute(path).map_err(SettingsError::Source)?;
        Ok(path.components().collect::<PathBuf>())
    };
    let folder = absolute(args.source)?;
    let secrets = args.secrets.map(absolute).transpose()?;
    let source = SourceSettings {
        node: args.name.map_or_else(host_name, Ok)?,
        secrets: secrets.unwrap_or_else(|| folder.join("secrets")),
        folder,
        poll_interval: SourceSettings::POLL_INTERVAL,
    };
    let certificates = args.node_certificates.map(absolute).transpose()?;
    let direct_ports = args.direct_ports.map(|range| range.0);
    let peers = certificates.map(|certificates| PeerSettings {
        direct_ports,
        node: source.node.clone(),
        listen: args.node_listen,
        certificates,
    });
    let mut settings = from_args(args.server)?;
    settings.gateway.min_bulk_bytes = args.node_bulk_bytes;
    settings.gateway.max_node_connections = args.node_connections;
    Ok(ServerSettings {
        source: Some(source),
        peers,
        ..settings
    })
}

fn host_name() -> Result<NodeName, SettingsError> {
    let name = rustix::system::uname();
    // Host names compare without case, names of nodes do not.
    let name = name.nodename().to_string_lossy().to_ascii_lowercase();
    name.parse().map_err(SettingsError::HostName)
}

fn tls_settings(args: &UpArgs) -> Option<TlsSettings> {
    let (listen, cert, key) = (
        args.tls_listen?,
        args.tls_cert.clone()?,
        args.tls_key.clone()?,
    );
    Some(TlsSettings {
        listen,
        cert,
        key,
        http3: args.http3 == Toggle::On,
    })
}

/// Rejects listeners that would accept unknown clients without an explicit option.
fn check_devices(devices: &DeviceArgs, insecure: bool) -> Result<(), SettingsError> {
    // Canonical, so that `::ffff:127.0.0.1` counts as loopback too.
    let is_public = |addr: &SocketAddr| !addr.ip().to_canonical().is_loopback();
    match (
        devices.mqtt_listen.filter(is_public),
        devices.coap_listen.filter(is_public),
    ) {
        // With passwords MQTT checks them itself; CoAP cannot, hence the stricter arm below.
        (Some(addr), _) if insecure && !devices.mqtt_anonymous => {
            Err(SettingsError::OpenMqtt(addr))
        }
        (_, Some(addr)) if !devices.coap_anonymous => Err(SettingsError::OpenCoap(addr)),
        _ => Ok(()),
    }
}

/// Without a path, the watchdog next to this program.
fn watchdog_path(path_option: Option<PathBuf>) -> Result<PathBuf, SettingsError> {
    let next_to_exe = || {
        std::env::current_exe()
            .map(|exe| exe.with_file_name("nearpath-watchdog"))
            .unwrap_or_default()
    };
    let path = path_option.unwrap_or_else(next_to_exe);
    // Absolute, because the process that starts it later may have another working directory.
    path.canonicalize()
        .map_err(|_| SettingsError::NoWatchdog(path))
}

/// Folders that functions may see: without a name of their own inside they would hide others.
fn shared_dirs(share_dirs: Vec<PathBuf>) -> Result<Vec<PathBuf>, SettingsError> {
    const OWN_DIRS: [&str; 8] = [
        "/dev", "/etc", "/home", "/proc", "/run", "/tmp", "/usr", "/var",
    ];
    for dir in &share_dirs {
        let is_own = dir == Path::new("/") || OWN_DIRS.iter().any(|own| dir.starts_with(own));
        let is_plain =
            dir.is_absolute() && !dir.components().any(|part| part == Component::ParentDir);
        if is_own || !is_plain || !dir.is_dir() {
            return Err(SettingsError::ShareDir(dir.clone()));
        }
    }
    Ok(share_dirs)
}

fn absolute_data_dir(path_option: Option<PathBuf>) -> Result<PathBuf, SettingsError> {
    // Not canonicalized: the folder may not exist before the first start.
    std::path::absolute(path_option.unwrap_or_else(crate::default_data_dir))
        .map_err(SettingsError::DataDir)
}

fn auth(insecure: bool, secret_mount_path: Option<PathBuf>) -> AuthMode {
    match (insecure, secret_mount_path) {
        (true, _) => AuthMode::Disabled,
        (false, Some(folder)) => AuthMode::Files(folder),
        (false, None) => AuthMode::Generated,
    }
}

fn available_cores() -> NonZeroUsize {
    // It honours affinity and cgroup quotas, unlike the number of processors.
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

fn at_least_one(threads: usize) -> NonZeroUsize {
    // `--threads 0` is taken as the smallest number instead of an error.
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}

fn gateway_settings(callers: &CallerArgs, drain_timeout: Duration) -> GatewaySettings {
    let CallerArgs {
        header_timeout,
        idle_timeout,
        write_timeout,
        body_idle_timeout,
        min_body_rate,
        min_read_rate,
        min_rate_grace,
        ..
    } = *callers;
    GatewaySettings {
        header_timeout,
        idle_timeout,
        write_timeout,
        body_idle_timeout,
        min_body_rate,
        min_read_rate,
        min_rate_grace,
        max_connections: callers.max_connections,
        retry_above_handshakes: callers.http3_retry_above,
        drain_timeout,
        ..GatewaySettings::default()
    }
}

fn device_settings(args: &DeviceArgs) -> DeviceSettings {
    let mqtt = args.mqtt_listen.map(|listen| MqttSettings {
        listen,
        anonymous: args.mqtt_anonymous,
        max_clients: args.mqtt_clients,
    });
    let coap = args.coap_listen.map(|listen| CoapSettings {
        listen,
        observe_interval: args.coap_observe_interval,
    });
    DeviceSettings { mqtt, coap }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_the_same_from_everywhere() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            absolute_data_dir(Some("state/here".into())).unwrap(),
            here.join("state/here")
        );
        assert_eq!(
            absolute_data_dir(Some("/var/lib/nearpath".into())).unwrap(),
            PathBuf::from("/var/lib/nearpath")
        );
    }

    #[test]
    fn the_gateway_gets_the_typed_limits() {
        let seconds = Duration::from_secs;
        let typed = CallerArgs {
            header_timeout: seconds(1),
            idle_timeout: seconds(2),
            write_timeout: seconds(3),
            body_idle_timeout: seconds(4),
            min_body_rate: 8,
            min_read_rate: 9,
            min_rate_grace: seconds(10),
            max_connections: 5,
            http3_retry_above: 7,
        };
        let got = gateway_settings(&typed, seconds(6));
        let times = [
            got.header_timeout,
            got.idle_timeout,
            got.write_timeout,
            got.body_idle_timeout,
            got.drain_timeout,
        ];
        assert_eq!(
            (times, got.max_connections, got.retry_above_handshakes),
            ([1, 2, 3, 4, 6].map(seconds), 5, 7)
        );
    }

    fn device_args(mqtt: Option<&str>, coap: Option<&str>) -> DeviceArgs {
        DeviceArgs {
            mqtt_listen: mqtt.map(|addr| addr.parse().unwrap()),
            mqtt_anonymous: false,
            mqtt_clients: 1,
            coap_listen: coap.map(|addr| addr.parse().unwrap()),
            coap_anonymous: false,
            coap_observe_interval: Duration::from_secs(1),
        }
    }

    #[test]
    fn device_listeners_are_open_only_with_the_option() {
        let (loopback, public) = (Some("127.0.0.1:1"), Some("0.0.0.0:1"));
        let check = |args: DeviceArgs, insecure| check_devices(&args, insecure);
        assert!(check(device_args(loopback, loopback), true).is_ok());
        assert!(
            check(device_args(public, None), false).is_ok(),
            "it has a password"
        );
        assert!(check(device_args(public, None), true).is_err());
        assert!(check(device_args(None, public), false).is_err());
        assert!(
            check(
                DeviceArgs {
                    coap_anonymous: true,
                    ..device_args(None, public)
                },
                false
            )
            .is_ok()
        );
        assert!(
            check(
                DeviceArgs {
                    mqtt_anonymous: true,
                    ..device_args(public, None)
                },
                true
            )
            .is_ok()
        );
    }
}
