//! Configuration from environment variables, read once. All faults are collected, so that one start
//! shows them all.

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
use keys::SettingKey;
use nearpath_types::duration;
use nearpath_types::policy::CallTransport;
use upstream_target::{UpstreamProtocol, UpstreamTarget};

/// Mode in which the tenant's code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModeName {
    Http,
    Streaming,
    Serializing,
    Static,
}

/// All settings, parsed. [`keys`] has the meaning of each.
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
    /// Longest line of the tenant's output before it is split, in bytes; `None`: no limit.
    pub(crate) max_log_line_bytes: Option<usize>,
    pub(crate) log_callid: bool,
    /// `None`: no lock file.
    pub(crate) lock_file: Option<PathBuf>,
    pub(crate) ready_path: Option<PathAndQuery>,
    pub(crate) instance_env: InstanceEnv,
    /// The node sends an identity, and the instance is not ready before.
    pub(crate) expects_identity: bool,
    /// Transport that callers must use.
    pub(crate) transport: CallTransport,
}

/// Invalid variables, each with what to write instead.
#[derive(Debug)]
pub struct WatchdogConfigError(Vec<String>);

impl fmt::Display for WatchdogConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for WatchdogConfigError {}

type ParseResult<T> = Result<T, String>;

/// Reads variables and collects the faults.
struct ConfigReader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    faults: Vec<String>,
}

impl ConfigReader<'_> {
    /// Returns the first of the key's names that is set and not empty.
    fn find_text(&self, key: &SettingKey) -> Option<(&'static str, String)> {
        let set = |name: &&'static str| {
            (self.lookup)(name)
                .filter(|text| !text.is_empty())
                .map(|text| (*name, text))
        };
        key.names.iter().find_map(set)
    }

    /// Returns the parsed value, or the default. A fault is recorded, and the default used.
    fn read_setting<T>(
        &mut self,
        key: &SettingKey,
        parse: fn(&str) -> ParseResult<T>,
    ) -> Option<T> {
        if let Some((name, text)) = self.find_text(key) {
            match parse(&text) {
                Ok(value) => return Some(value),
                Err(fault) => self.faults.push(format!("variable {name}: {fault}")),
            }
        }
        // The default keeps the reading going, so that later faults are found as well.
        (!key.default.is_empty()).then(|| parse(key.default).expect("a test reads every default"))
    }

    fn read_required<T>(&mut self, key: &SettingKey, parse: fn(&str) -> ParseResult<T>) -> T {
        self.read_setting(key, parse)
            .expect("a test reads every default")
    }

    fn read_time_limit(&mut self, key: &SettingKey) -> Option<Duration> {
        Some(self.read_required(key, parse_duration)).filter(|limit| !limit.is_zero())
    }
}

impl WatchdogConfig {
    /// Reads every setting through `get`, which returns the value of a variable.
    ///
    /// # Errors
    /// When a value cannot be understood or one that the mode needs is missing: all of them at
    /// once.
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
        // First, because `healthcheck_interval` defaults to it.
        let write_timeout = reader.read_time_limit(&keys::WRITE_TIMEOUT);
        let temp = reader.read_required(&keys::TMPDIR, |text| Ok(PathBuf::from(text)));
        let shared_memory = reader.read_required(&keys::SHARED_MEMORY, parse_bool);
        let no_lock = reader.read_required(&keys::SUPPRESS_LOCK, parse_bool);
        Self {
            port: reader.read_required(&keys::PORT, parse_number),
            bind_address: reader.read_required(&keys::BIND_ADDRESS, parse_address),
            // 0 turns the metrics off, unlike `port`, where it means any free one.
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
            // The path that of-watchdog's own health check looks for.
            lock_file: (!no_lock).then(|| temp.join(".lock")),
            ready_path: reader.read_setting(&keys::READY_PATH, parse_path),
            instance_env: InstanceEnv::read(reader.lookup, shared_memory),
            // Without regard to `shared_memory`: both are for calls over the network.
            expects_identity: instance_env::is_identity_expected(reader.lookup),
            transport: instance_env::read_transport(reader.lookup),
        }
    }

    /// Checks conditions over several variables: the mode has what it needs, and no unsupported
    /// check is asked for.
    fn check_mode(&self, reader: &mut ConfigReader<'_>) {
        let missing =
            |key: &SettingKey| format!("variable {} is missing: {}", key.names[0], key.text);
        // An invalid command is a fault already; only an absent one is missing.
        if self.mode != ModeName::Static
            && self.command.is_empty()
            && reader.find_text(&keys::FUNCTION_PROCESS).is_none()
        {
            reader.faults.push(missing(&keys::FUNCTION_PROCESS));
        }
        if self.mode == ModeName::Http && reader.find_text(&keys::UPSTREAM_URL).is_none() {
            reader.faults.push(missing(&keys::UPSTREAM_URL));
        }
        // Ignoring it would open a function that its operator believes to be protected.
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
        other => Err(format!("invalid boolean {other:?}: expected true or false")),
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
    // A path without its slash has one meaning, so it is no fault.
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
        // Modes of of-watchdog that are not supported get a hint of their own.
        "inproc" => {
            Err("inproc is a mode of Go programs that link of-watchdog: use http".to_owned())
        }
        "afterburn" => Err("afterburn is deprecated and not supported: use http".to_owned()),
        other => Err(format!(
            "invalid mode {other:?}: expected http, streaming, serializing or static"
        )),
    }
}

#[cfg(test)]
mod tests;
