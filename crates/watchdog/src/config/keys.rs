//! Environment variables with names, default and meaning: read by [`super::WatchdogConfig`], shown
//! by `--help`.

use std::fmt::Write;

/// Setting with its names, default and description.
#[derive(Debug)]
pub(crate) struct SettingKey {
    /// Names of the variable; the first that is set counts.
    pub(crate) names: &'static [&'static str],
    /// Default; empty: none.
    pub(crate) default: &'static str,
    /// Description for `--help`.
    pub(crate) text: &'static str,
}

macro_rules! keys {
    ($($constant:ident = [$($name:literal),+], $default:literal, $text:literal;)*) => {
        $(pub(crate) const $constant: SettingKey = SettingKey { names: &[$($name),+], default: $default, text: $text };)*
        /// All settings, in the order of `--help`.
        pub(crate) const ALL: &[&SettingKey] = &[$(&$constant),*];
    };
}

keys! {
    MODE = ["mode"], "streaming", "how requests reach the tenant's code: http, streaming, serializing or static";
    FUNCTION_PROCESS = ["function_process", "fprocess"], "", "command that runs the tenant's code";
    UPSTREAM_URL = ["upstream_url", "http_upstream_url"], "", "address of the tenant's HTTP server (mode http), e.g. http://127.0.0.1:5000";
    UPSTREAM_PROTOCOL = ["upstream_protocol"], "auto", "http1, h2c, or auto: h2c for gRPC and HTTP/1.1 for the rest";
    PORT = ["port"], "8080", "port for calls, /_/health and /_/ready; 0: any free one";
    BIND_ADDRESS = ["bind_address"], "0.0.0.0", "address to listen on";
    METRICS_PORT = ["metrics_port"], "8081", "port of /metrics; 0: none";
    EXEC_TIMEOUT = ["exec_timeout"], "30s", "time limit of a call, including its response unless that is a stream of events, JSON lines or gRPC; X-Timeout may shorten it; 0: none";
    READ_TIMEOUT = ["read_timeout"], "30s", "time limit for silence of a caller inside a request's head or body; 0: none";
    WRITE_TIMEOUT = ["write_timeout"], "30s", "time limit for a caller that takes no response bytes, and for the drain; 0: none, and no drain";
    HEALTHCHECK_INTERVAL = ["healthcheck_interval"], "", "time between becoming unhealthy and closing the port; default: write_timeout";
    START_TIMEOUT = ["start_timeout"], "30s", "time limit until the tenant's server accepts connections (mode http)";
    STOP_GRACE = ["stop_grace"], "2s", "time between SIGTERM and SIGKILL for the tenant's process";
    CONTENT_TYPE = ["content_type"], "application/octet-stream", "content type of responses in modes streaming and serializing";
    MAX_INFLIGHT = ["max_inflight"], "0", "concurrent calls; more get 429; 0: no limit";
    HTTP_BUFFER_REQ_BODY = ["http_buffer_req_body", "buffer_http"], "false", "send the tenant a request only after all of it has arrived (mode http)";
    MAX_BODY = ["max_body"], "64Mi", "largest request or response held in memory (serializing, http_buffer_req_body)";
    STATIC_PATH = ["static_path"], "/home/app/public", "folder served by mode static";
    READY_PATH = ["ready_path"], "", "path of the tenant's server that /_/ready queries (mode http)";
    PREFIX_LOGS = ["prefix_logs"], "true", "prefix each line of the tenant's output with date, time and stream";
    LOG_BUFFER_SIZE = ["log_buffer_size"], "65536", "longest line of the tenant's output in bytes, longer ones are split; -1: no limit";
    LOG_CALLID = ["log_callid"], "false", "log one line per call, with its X-Call-Id";
    SHARED_MEMORY = ["shared_memory"], "true", "in a function of a chain: take calls through the chain's shared memory, and send calls to http://gateway:8080/function/NAME through it";
    SUPPRESS_LOCK = ["suppress_lock"], "false", "create no lock file";
    TMPDIR = ["TMPDIR"], "/tmp", "folder of the lock file";
    JWT_AUTH = ["jwt_auth"], "false", "not supported: the watchdog refuses to start with it";
}

/// Returns the text of `--help`.
pub(crate) fn help_text() -> String {
    let mut text =
        "nearpath-watchdog [-version | -run-healthcheck | -help]\n\nVariables:\n".to_owned();
    for key in ALL {
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!(" [{}]", key.default)
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "  {:<36} {}{default}", key.names.join(", "), key.text);
    }
    text
}
