//! Every variable with its names, default and meaning: read by [`super::WatchdogConfig`] and shown by `--help`.

use std::fmt::Write;

/// One setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// The names it goes by; the first that is set counts.
    pub(crate) names: &'static [&'static str],
    /// What holds when none is set; empty: nothing.
    pub(crate) default: &'static str,
    /// What it is for.
    pub(crate) text: &'static str,
}

macro_rules! keys {
    ($($constant:ident = [$($name:literal),+], $default:literal, $text:literal;)*) => {
        $(pub(crate) const $constant: Key = Key { names: &[$($name),+], default: $default, text: $text };)*
        /// All of them, in the order in which help shows them.
        pub(crate) const ALL: &[&Key] = &[$(&$constant),*];
    };
}

keys! {
    MODE = ["mode"], "streaming", "how the tenant's code is spoken to: http, streaming, serializing or static";
    FUNCTION_PROCESS = ["function_process", "fprocess"], "", "the command that runs the tenant's code";
    UPSTREAM_URL = ["upstream_url", "http_upstream_url"], "", "where the tenant's HTTP server listens (mode http), e.g. http://127.0.0.1:5000";
    UPSTREAM_PROTOCOL = ["upstream_protocol"], "auto", "http1, h2c, or auto: h2c for gRPC and HTTP/1.1 for the rest";
    PORT = ["port"], "8080", "port for calls, /_/health and /_/ready; 0: any free one";
    BIND_ADDRESS = ["bind_address"], "0.0.0.0", "address that the ports are opened on";
    METRICS_PORT = ["metrics_port"], "8081", "port of /metrics; 0: none";
    EXEC_TIMEOUT = ["exec_timeout"], "30s", "longest time for one call, answer included unless that is a stream of events, of JSON lines or of gRPC; X-Timeout may shorten it; 0: none";
    READ_TIMEOUT = ["read_timeout"], "30s", "longest silence of a caller inside a request's head or body; 0: none";
    WRITE_TIMEOUT = ["write_timeout"], "30s", "longest time a caller may not take answer bytes, and longest drain; 0: none, and no waiting at drain";
    HEALTHCHECK_INTERVAL = ["healthcheck_interval"], "", "time between becoming unhealthy and closing the port; as write_timeout if unset";
    START_TIMEOUT = ["start_timeout"], "30s", "longest time until the tenant's server accepts connections (mode http)";
    STOP_GRACE = ["stop_grace"], "2s", "time between SIGTERM and SIGKILL for the tenant's process";
    CONTENT_TYPE = ["content_type"], "application/octet-stream", "content type of answers in modes streaming and serializing";
    MAX_INFLIGHT = ["max_inflight"], "0", "calls at the same time; more get 429; 0: no limit";
    HTTP_BUFFER_REQ_BODY = ["http_buffer_req_body", "buffer_http"], "false", "send the tenant a request only when all of it has arrived (mode http)";
    MAX_BODY = ["max_body"], "64Mi", "largest request or answer that is held in memory (serializing, http_buffer_req_body)";
    STATIC_PATH = ["static_path"], "/home/app/public", "folder that mode static serves";
    READY_PATH = ["ready_path"], "", "path of the tenant's server that /_/ready asks (mode http)";
    PREFIX_LOGS = ["prefix_logs"], "true", "put date, time and stream before each line of the tenant's output";
    LOG_BUFFER_SIZE = ["log_buffer_size"], "65536", "longest line of the tenant's output in bytes, longer ones are split; -1: no limit";
    LOG_CALLID = ["log_callid"], "false", "log one line a call, with its X-Call-Id";
    SHARED_MEMORY = ["shared_memory"], "true", "in a function of a chain: take calls through the chain's shared memory, and send those to http://gateway:8080/function/NAME there";
    SUPPRESS_LOCK = ["suppress_lock"], "false", "make no lock file";
    TMPDIR = ["TMPDIR"], "/tmp", "folder of the lock file";
    JWT_AUTH = ["jwt_auth"], "false", "not supported: the watchdog refuses to start with it";
}

/// The text of `--help`.
pub(crate) fn help_text() -> String {
    let mut text =
        "nearpath-watchdog [-version | -run-healthcheck | -help]\n\nVariables:\n".to_owned();
    for key in ALL {
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!(" [{}]", key.default)
        };
        let _ = writeln!(text, "  {:<36} {}{default}", key.names.join(", "), key.text);
    }
    text
}
