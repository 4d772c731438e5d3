//! What the variables say, read once. Every fault is collected, so that one start shows them all.

pub(crate) mod command;
pub(crate) mod keys;
pub(crate) mod premises;
pub(crate) mod target;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;
use keys::Key;
use nearpath_types::duration;
use nearpath_types::policy::Transport;
use premises::Premises;
use target::{Protocol, Target};

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
pub struct Config {
    pub(crate) port: u16,
    pub(crate) bind: IpAddr,
    pub(crate) metrics_port: Option<u16>,
    pub(crate) mode: ModeName,
    pub(crate) command: Vec<String>,
    pub(crate) upstream: Option<Target>,
    pub(crate) upstream_protocol: Protocol,
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
    /// Longest line of the tenant's output kept in one piece; `None`: any.
    pub(crate) log_line: Option<usize>,
    pub(crate) log_callid: bool,
    /// `None`: no lock file.
    pub(crate) lock: Option<PathBuf>,
    pub(crate) ready_path: Option<PathAndQuery>,
    pub(crate) premises: Premises,
    /// It is told who it is, and not ready before.
    pub(crate) identity_awaited: bool,
    /// What callers have to speak.
    pub(crate) transport: Transport,
}

/// Variables that cannot be understood, each with what to write instead.
#[derive(Debug)]
pub struct ConfigError(Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for ConfigError {}

type Parsed<T> = Result<T, String>;

/// Reads variables and remembers what was wrong.
struct Reader<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    faults: Vec<String>,
}

impl Reader<'_> {
    /// The first of the key's names that is set and not empty.
    fn text(&self, key: &Key) -> Option<(&'static str, String)> {
        let set = |name: &&'static str| (self.get)(name).filter(|text| !text.is_empty()).map(|text| (*name, text));
        key.names.iter().find_map(set)
    }

    /// Its value, or that of its default; a fault is noted and the default taken.
    fn read<T>(&mut self, key: &Key, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        if let Some((name, text)) = self.text(key) {
            match parse(&text) {
                Ok(value) => return Some(value),
                Err(fault) => self.faults.push(format!("variable {name}: {fault}")),
            }
        }
        (!key.default.is_empty()).then(|| parse(key.default).expect("a test reads every default"))
    }

    fn must<T>(&mut self, key: &Key, parse: fn(&str) -> Parsed<T>) -> T {
        self.read(key, parse).expect("a test reads every default")
    }

    fn limit(&mut self, key: &Key) -> Option<Duration> {
        Some(self.must(key, seconds)).filter(|limit| !limit.is_zero())
    }
}

impl Config {
    /// Reads every setting through `get`.
    ///
    /// # Errors
    /// When a value cannot be understood or one that the mode needs is missing: all of them at once.
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader { get, faults: Vec::new() };
        let config = Self::values(&mut reader);
        config.check(&mut reader);
        if reader.faults.is_empty() { Ok(config) } else { Err(ConfigError(reader.faults)) }
    }

    fn values(reader: &mut Reader<'_>) -> Self {
        let write_timeout = reader.limit(&keys::WRITE_TIMEOUT);
        let temp = reader.must(&keys::TMPDIR, |text| Ok(PathBuf::from(text)));
        let shared_memory = reader.must(&keys::SHARED_MEMORY, boolean);
        let no_lock = reader.must(&keys::SUPPRESS_LOCK, boolean);
        Self {
            port: reader.must(&keys::PORT, number),
            bind: reader.must(&keys::BIND_ADDRESS, address),
            metrics_port: Some(reader.must(&keys::METRICS_PORT, number)).filter(|port| *port != 0),
            mode: reader.must(&keys::MODE, mode),
            command: reader.read(&keys::FUNCTION_PROCESS, command::split).unwrap_or_default(),
            upstream: reader.read(&keys::UPSTREAM_URL, Target::parse),
            upstream_protocol: reader.must(&keys::UPSTREAM_PROTOCOL, Protocol::parse),
            exec_timeout: reader.limit(&keys::EXEC_TIMEOUT),
            read_timeout: reader.limit(&keys::READ_TIMEOUT),
            write_timeout,
            healthcheck_interval: reader
                .read(&keys::HEALTHCHECK_INTERVAL, seconds)
                .unwrap_or(write_timeout.unwrap_or_default()),
            start_timeout: reader.must(&keys::START_TIMEOUT, seconds),
            stop_grace: reader.must(&keys::STOP_GRACE, seconds),
            content_type: reader.must(&keys::CONTENT_TYPE, header_value),
            max_inflight: reader.must(&keys::MAX_INFLIGHT, number),
            buffer_request: reader.must(&keys::HTTP_BUFFER_REQ_BODY, boolean),
            max_body: reader.must(&keys::MAX_BODY, bytes),
            static_path: reader.must(&keys::STATIC_PATH, |text| Ok(PathBuf::from(text))),
            prefix_logs: reader.must(&keys::PREFIX_LOGS, boolean),
            log_line: reader.must(&keys::LOG_BUFFER_SIZE, line_size),
            log_callid: reader.must(&keys::LOG_CALLID, boolean),
            lock: (!no_lock).then(|| temp.join(".lock")),
            ready_path: reader.read(&keys::READY_PATH, path),
            premises: if shared_memory { Premises::read(reader.get) } else { Premises::default() },
            identity_awaited: premises::identity_awaited(reader.get),
            transport: premises::transport(reader.get),
        }
    }

    /// What no single variable shows: whether the mode has what it needs, and whether a check was asked for that is not made.
    fn check(&self, reader: &mut Reader<'_>) {
        let missing = |key: &Key| format!("variable {} is missing: {}", key.names[0], key.text);
        if self.mode != ModeName::Static && self.command.is_empty() && reader.text(&keys::FUNCTION_PROCESS).is_none() {
            reader.faults.push(missing(&keys::FUNCTION_PROCESS));
        }
        if self.mode == ModeName::Http && reader.text(&keys::UPSTREAM_URL).is_none() {
            reader.faults.push(missing(&keys::UPSTREAM_URL));
        }
        if reader.must(&keys::JWT_AUTH, boolean) {
            reader.faults.push("variable jwt_auth: not supported; the gateway checks who may call a function".into());
        }
    }
}

fn seconds(text: &str) -> Parsed<Duration> {
    duration::parse(text).map_err(|fault| fault.to_string())
}

fn number<T: std::str::FromStr>(text: &str) -> Parsed<T> {
    text.trim().parse().map_err(|_| format!("{text:?} is not a number in range"))
}

fn bytes(text: &str) -> Parsed<usize> {
    let bytes = nearpath_types::quantity::memory(text).map_err(|fault| fault.to_string())?;
    usize::try_from(bytes).map_err(|_| format!("{text:?} is too large"))
}

fn boolean(text: &str) -> Parsed<bool> {
    match text.trim() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn address(text: &str) -> Parsed<IpAddr> {
    text.parse().map_err(|_| format!("{text:?} is not an IP address"))
}

fn header_value(text: &str) -> Parsed<HeaderValue> {
    HeaderValue::from_str(text).map_err(|_| format!("{text:?} cannot be a header's value"))
}

fn path(text: &str) -> Parsed<PathAndQuery> {
    let absolute = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    absolute.parse().map_err(|_| format!("{text:?} is not a path"))
}

fn line_size(text: &str) -> Parsed<Option<usize>> {
    if text.trim() == "-1" {
        return Ok(None);
    }
    match number::<usize>(text)? {
        0 => Err("0 leaves no room for a line: write -1 for no limit".to_owned()),
        size => Ok(Some(size)),
    }
}

fn mode(text: &str) -> Parsed<ModeName> {
    match text.trim() {
        "http" => Ok(ModeName::Http),
        "streaming" => Ok(ModeName::Streaming),
        "serializing" => Ok(ModeName::Serializing),
        "static" => Ok(ModeName::Static),
        "inproc" => Err("inproc is a mode of Go programs that link of-watchdog: use http".to_owned()),
        "afterburn" => Err("afterburn is deprecated and not supported: use http".to_owned()),
        other => Err(format!("{other:?} is not a mode: write http, streaming, serializing or static")),
    }
}

#[cfg(test)]
mod tests;
