//! What the variables say, read once. Every fault is collected, so that one start shows them all.

pub(crate) mod command;
pub(crate) mod instance_env;
pub(crate) mod keys;
pub(crate) mod upstream_target;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;
use instance_env::InstanceEnv;
use keys::Key;
use nearpath_types::duration;
use nearpath_types::policy::CallTransport;
use upstream_target::{UpstreamProtocol, UpstreamTarget};

/// How the tenant's code is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModeName {
    Http,
    Streaming,
    Serializing,
    Static,
}

/// Every setting, ready to use. The meaning of each is in [`keys`].
#[derive(Debug, Clone)]
pub struct WatchdogConfig {
    pub(crate) port: u16,
    pub(crate) bind_address: IpAddr,
    pub(crate) metrics_port: Option<u16>,
    pub(crate) mode: ModeName,
    pub(crate) command: Vec<String>,
    pub(crate) upstream: Option<UpstreamTarget>,
    pub(crate) upstream_protocol: UpstreamProtocol,
    pub(crate) exec_timeout: Option<Duration>,
    pub(crate) read_timeout: Option<Duration>,
    pub(crate) write_timeout: Option<Duration>,
    pub(crate) healthcheck_interval: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) stop_grace: Duration,
    pub(crate) content_type: HeaderValue,
    pub(crate) max_inflight: usize,
    pub(crate) buffer_request: bool,
    pub(crate) max_body: usize,
    pub(crate) static_path: PathBuf,
    pub(crate) prefix_logs: bool,
    /// Longest line of the tenant's output kept in one piece; `NoConnection`: any.
    pub(crate) max_log_line_bytes: Option<usize>,
    pub(crate) log_callid: bool,
    /// `NoConnection`: no lock file.
    pub(crate) lock_file: Option<PathBuf>,
    pub(crate) ready_path: Option<PathAndQuery>,
    pub(crate) instance_env: InstanceEnv,
    /// It is told who it is, and not ready before.
    pub(crate) expects_identity: bool,
    /// What callers have to speak.
    pub(crate) transport: CallTransport,
}

/// Variables that cannot be understood, each with what to write instead.
#[derive(Debug)]
pub struct WatchdogConfigError(Vec<String>);

impl fmt::Display for WatchdogConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for WatchdogConfigError {}

type ParseResult<T> = Result<T, String>;

/// Reads variables and remembers what was wrong.
struct ConfigReader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    faults: Vec<String>,
}

impl ConfigReader<'_> {
    /// The first of the key's names that is set and not empty.
    fn find_text(&self, key: &Key) -> Option<(&'static str, String)> {
        let set = |name: &&'static str| {
            (self.lookup)(name)
                .filter(|text| !text.is_empty())
                .map(|text| (*name, text))
        };
        key.names.iter().find_map(set)
    }

    /// Its value, or that of its default; a fault is noted and the default taken.
    fn read_setting<T>(&mut self, key: &Key, parse: fn(&str) -> ParseResult<T>) -> Option<T> {
        if let Some((name, text)) = self.find_text(key) {
            match parse(&text) {
                Ok(value) => return Some(value),
                Err(fault) => self.faults.push(format!("variable {name}: {fault}")),
            }
        }
        (!key.default.is_empty()).then(|| parse(key.default).expect("a test reads every default"))
    }

    fn read_required<T>(&mut self, key: &Key, parse: fn(&str) -> ParseResult<T>) -> T {
        self.read_setting(key, parse)
            .expect("a test reads every default")
    }

    fn read_time_limit(&mut self, key: &Key) -> Option<Duration> {
        Some(self.read_required(key, parse_duration)).filter(|limit| !limit.is_zero())
    }
}

impl WatchdogConfig {
    /// Reads every setting through `get`.
    ///
    /// # Errors
    /// When a value cannot be understood or one that the mode needs is missing: all of them at once.
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, WatchdogConfigError> {
        let mut reader = ConfigReader {
            lookup: get,
            faults: Vec::new(),
        };
        let config = Self::read_values(&mut reader);
        config.check_mode(&mut reader);
        if reader.faults.is_empty() {
            Ok(config)
        } else {
            Err(WatchdogConfigError(reader.faults))
        }
    }

    fn read_values(reader: &mut ConfigReader<'_>) -> Self {
        let write_timeout = reader.read_time_limit(&keys::WRITE_TIMEOUT);
        let temp = reader.read_required(&keys::TMPDIR, |text| Ok(PathBuf::from(text)));
        let shared_memory = reader.read_required(&keys::SHARED_MEMORY, parse_bool);
        let no_lock = reader.read_required(&keys::SUPPRESS_LOCK, parse_bool);
        Self {
            port: reader.read_required(&keys::PORT, parse_number),
            bind_address: reader.read_required(&keys::BIND_ADDRESS, parse_address),
            metrics_port: Some(reader.read_required(&keys::METRICS_PORT, parse_number))
                .filter(|port| *port != 0),
            mode: reader.read_required(&keys::MODE, parse_mode),
            command: reader
                .read_setting(&keys::FUNCTION_PROCESS, command::split_command)
                .unwrap_or_default(),
            upstream: reader.read_setting(&keys::UPSTREAM_URL, UpstreamTarget::parse),
            upstream_protocol: reader
                .read_required(&keys::UPSTREAM_PROTOCOL, UpstreamProtocol::parse),
            exec_timeout: reader.read_time_limit(&keys::EXEC_TIMEOUT),
            read_timeout: reader.read_time_limit(&keys::READ_TIMEOUT),
            write_timeout,
            healthcheck_interval: reader
                .read_setting(&keys::HEALTHCHECK_INTERVAL, parse_duration)
                .unwrap_or(write_timeout.unwrap_or_default()),
            start_timeout: reader.read_required(&keys::START_TIMEOUT, parse_duration),
            stop_grace: reader.read_required(&keys::STOP_GRACE, parse_duration),
            content_type: reader.read_required(&keys::CONTENT_TYPE, parse_header_value),
            max_inflight: reader.read_required(&keys::MAX_INFLIGHT, parse_number),
            buffer_request: reader.read_required(&keys::HTTP_BUFFER_REQ_BODY, parse_bool),
            max_body: reader.read_required(&keys::MAX_BODY, parse_bytes),
            static_path: reader.read_required(&keys::STATIC_PATH, |text| Ok(PathBuf::from(text))),
            prefix_logs: reader.read_required(&keys::PREFIX_LOGS, parse_bool),
            max_log_line_bytes: reader.read_required(&keys::LOG_BUFFER_SIZE, parse_line_size),
            log_callid: reader.read_required(&keys::LOG_CALLID, parse_bool),
            lock_file: (!no_lock).then(|| temp.join(".lock")),
            ready_path: reader.read_setting(&keys::READY_PATH, parse_path),
            instance_env: if shared_memory {
                InstanceEnv::read(reader.lookup)
            } else {
                InstanceEnv::default()
            },
            expects_identity: instance_env::is_identity_expected(reader.lookup),
            transport: instance_env::read_transport(reader.lookup),
        }
    }

    /// What no single variable shows: whether the mode has what it needs, and whether a check was asked for that is not made.
    fn check_mode(&self, reader: &mut ConfigReader<'_>) {
        let missing = |key: &Key| format!("variable {} is missing: {}", key.names[0], key.text);
        if self.mode != ModeName::Static
            && self.command.is_empty()
            && reader.find_text(&keys::FUNCTION_PROCESS).is_none()
        {
            reader.faults.push(missing(&keys::FUNCTION_PROCESS));
        }
        if self.mode == ModeName::Http && reader.find_text(&keys::UPSTREAM_URL).is_none() {
            reader.faults.push(missing(&keys::UPSTREAM_URL));
        }
        if reader.read_required(&keys::JWT_AUTH, parse_bool) {
            reader.faults.push(
                "variable jwt_auth: not supported; the gateway checks who may call a function"
                    .into(),
            );
        }
    }
}

fn parse_duration(text: &str) -> ParseResult<Duration> {
    duration::parse_duration(text).map_err(|fault| fault.to_string())
}

fn parse_number<T: std::str::FromStr>(text: &str) -> ParseResult<T> {
    text.trim()
        .parse()
        .map_err(|_| format!("{text:?} is not a number in range"))
}

fn parse_bytes(text: &str) -> ParseResult<usize> {
    let bytes = nearpath_types::quantity::parse_memory(text).map_err(|fault| fault.to_string())?;
    usize::try_from(bytes).map_err(|_| format!("{text:?} is too large"))
}

fn parse_bool(text: &str) -> ParseResult<bool> {
    match text.trim() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn parse_address(text: &str) -> ParseResult<IpAddr> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an IP address"))
}

fn parse_header_value(text: &str) -> ParseResult<HeaderValue> {
    HeaderValue::from_str(text).map_err(|_| format!("{text:?} cannot be a header's value"))
}

fn parse_path(text: &str) -> ParseResult<PathAndQuery> {
    let absolute = if text.starts_with('/') {
        text.to_owned()
    } else {
        format!("/{text}")
    };
    absolute
        .parse()
        .map_err(|_| format!("{text:?} is not a path"))
}

fn parse_line_size(text: &str) -> ParseResult<Option<usize>> {
    if text.trim() == "-1" {
        return Ok(None);
    }
    match parse_number::<usize>(text)? {
        0 => Err("0 leaves no room for a line: write -1 for no limit".to_owned()),
        size => Ok(Some(size)),
    }
}

fn parse_mode(text: &str) -> ParseResult<ModeName> {
    match text.trim() {
        "http" => Ok(ModeName::Http),
        "streaming" => Ok(ModeName::Streaming),
        "serializing" => Ok(ModeName::Serializing),
        "static" => Ok(ModeName::Static),
        "inproc" => {
            Err("inproc is a mode of Go programs that link of-watchdog: use http".to_owned())
        }
        "afterburn" => Err("afterburn is deprecated and not supported: use http".to_owned()),
        other => Err(format!(
            "{other:?} is not a mode: write http, streaming, serializing or static"
        )),
    }
}

#[cfg(test)]
mod tests;
