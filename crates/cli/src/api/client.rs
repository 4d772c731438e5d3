//! HTTP exchanges with the gateway: credentials, timeouts, and errors for people.

use std::io;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::{Agent, AsSendBody, Body, Proxy, Timeout};

use super::target::GatewayTarget;
use crate::exit::{CommandError, ExitStatus};

/// Longest administrative call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// A gateway that accepts no connection in this time is regarded as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Responses of administrative calls are held in memory up to this size.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;
/// Error texts are shown up to this size.
const MAX_ERROR_BYTES: u64 = 4 << 10;

/// A client of one gateway.
pub(crate) struct ApiClient {
    agent: Agent,
    target: GatewayTarget,
}

impl ApiClient {
    /// Creates a client; connects on first use.
    pub(crate) fn new(target: GatewayTarget) -> Self {
        let proxy = if target.is_local {
            None
        } else {
            // A gateway on loopback is never behind a proxy, which would look for it on its own
            // machine.
            Proxy::try_from_env()
        };
        let config = Agent::config_builder()
            // The body of an error response holds the reason, which an error value would drop.
            .http_status_as_error(false)
            // A redirect could lead the administrator's password elsewhere.
            .max_redirects(0)
            .proxy(proxy)
            .user_agent(concat!("nearpath/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            // Functions may define methods of their own, for `invoke -X`.
            .allow_non_standard_methods(true);
        let config = match &target.tls {
            Some(tls) => config.tls_config(tls.clone()),
            None => config,
        };
        Self {
            agent: config.build().new_agent(),
            target,
        }
    }

    /// The gateway's base URL.
    pub(crate) fn base(&self) -> &str {
        &self.target.base
    }

    /// The user name that is sent, if any.
    pub(crate) fn user(&self) -> Option<&str> {
        self.target
            .credentials
            .as_ref()
            .map(|(user, _)| user.as_str())
    }

    /// Sends a request without the administrator's credentials, for calls of functions.
    ///
    /// # Errors
    /// When there is no response. An error status is a response.
    pub(crate) fn send(
        &self,
        request: Request<impl AsSendBody>,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, CommandError> {
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(timeout)
            .build();
        self.agent
            .run(request)
            .map_err(|error| self.transport_error(&error, timeout))
    }

    /// Makes an administrative call. An error status becomes an error whose text begins with
    /// `what`.
    pub(super) fn call(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Body>, CommandError> {
        self.check_status(what, self.exchange(method, path, body, Some(CALL_TIMEOUT))?)
    }

    /// Makes a call whose response is a stream without a time limit.
    pub(super) fn stream(&self, what: &str, path: &str) -> Result<Response<Body>, CommandError> {
        self.check_status(what, self.exchange(Method::GET, path, None::<&()>, None)?)
    }

    fn check_status(
        &self,
        what: &str,
        response: Response<Body>,
    ) -> Result<Response<Body>, CommandError> {
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.error_of(what, response)),
        }
    }

    /// Makes an administrative exchange and returns any status.
    pub(super) fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, CommandError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.target.base));
        if let Some((user, password)) = &self.target.credentials {
            let token = STANDARD.encode(format!("{user}:{password}"));
            request = request.header(header::AUTHORIZATION, format!("Basic {token}"));
        }
        // The URL has parts that the user typed, so this is a usage error.
        let invalid = |error: http::Error| {
            CommandError::new(ExitStatus::Usage, format!("invalid request: {error}"))
        };
        match body {
            None => self.send(request.body(()).map_err(invalid)?, timeout),
            Some(body) => {
                let json = serde_json::to_vec(body).expect("our own types can be written as JSON");
                let request = request.header(header::CONTENT_TYPE, "application/json");
                self.send(request.body(json).map_err(invalid)?, timeout)
            }
        }
    }

    /// Reads a response as JSON.
    pub(super) fn read_json<T: DeserializeOwned>(
        &self,
        response: Response<Body>,
    ) -> Result<T, CommandError> {
        let reader = response
            .into_body()
            .into_with_config()
            .limit(MAX_RESPONSE_BYTES)
            .reader();
        // Buffered: serde_json reads byte by byte.
        serde_json::from_reader(io::BufReader::new(reader)).map_err(|error| self.not_json(&error))
    }

    /// The error of a response without the API's shape: the address may belong to another server.
    pub(super) fn not_json(&self, error: &serde_json::Error) -> CommandError {
        let text = format!(
            "{}: invalid response, expected JSON of the gateway's API: {error}; check --gateway",
            self.target.base
        );
        CommandError::new(ExitStatus::Failed, text)
    }

    /// The error of a response with an error status.
    pub(super) fn error_of(&self, what: &str, response: Response<Body>) -> CommandError {
        let status = response.status();
        let exit = match status {
            // Each number is a documented exit code: see `ExitStatus::TABLE`.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ExitStatus::Unauthorised,
            StatusCode::NOT_FOUND => ExitStatus::NotFound,
            _ => ExitStatus::Failed,
        };
        let detail = error_text(response);
        let detail = if detail.is_empty() {
            String::new()
        } else {
            format!(": {detail}")
        };
        let mut text = format!(
            "{what}: {} returned {}{detail}",
            self.target.base,
            status.as_u16()
        );
        if exit == ExitStatus::Unauthorised {
            // Names the file or variable: most 401s come from a password of another gateway.
            text += &format!(" ({})", self.target.credential_origin);
        }
        CommandError::new(exit, text)
    }

    fn transport_error(&self, error: &ureq::Error, timeout: Option<Duration>) -> CommandError {
        let base = &self.target.base;
        let remedy = "start one with `nearpath up`, or set another with --gateway";
        match error {
            ureq::Error::Timeout(
                Timeout::Global | Timeout::PerCall | Timeout::RecvResponse | Timeout::RecvBody,
            ) => {
                let timeout =
                    nearpath_types::duration::format_duration(timeout.unwrap_or(CALL_TIMEOUT));
                CommandError::new(
                    ExitStatus::Failed,
                    format!("{base}: no response within {timeout}"),
                )
            }
            ureq::Error::Http(error) => {
                CommandError::new(ExitStatus::Usage, format!("invalid request: {error}"))
            }
            ureq::Error::BadUri(error) => {
                CommandError::new(ExitStatus::Usage, format!("invalid address: {error}"))
            }
            // Separate from other failures: nothing listens there, so the remedy is certain.
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                CommandError::new(
                    ExitStatus::Unreachable,
                    format!("no gateway at {base}: {remedy}"),
                )
            }
            ureq::Error::Io(error) if is_certificate_error(error) => CommandError::new(
                ExitStatus::Unreachable,
                format!(
                    "{base}: {error}; name the gateway's authority with --tls-ca FILE, or skip the check with --tls-no-verify"
                ),
            ),
            ureq::Error::Io(error) if is_reset(error) => CommandError::new(
                ExitStatus::Failed,
                format!(
                    "{base} closed the connection before it had the whole request and without a response: {error}; try again, and with a large body see `nearpath.io/max-body` of the function"
                ),
            ),
            // Something listens there, so starting another gateway is no remedy.
            error => CommandError::new(
                ExitStatus::Unreachable,
                format!("no response from {base}: {error}"),
            ),
        }
    }
}

/// Returns whether the peer ended a connection that was in use.
fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
}

/// Returns whether the gateway's certificate was refused.
fn is_certificate_error(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// The text of an error response, as one line. Control characters are removed: they could steer a
/// terminal.
pub(crate) fn error_text(response: Response<Body>) -> String {
    let body = response
        .into_body()
        .into_with_config()
        .limit(MAX_ERROR_BYTES)
        // A cut at the limit may split a character, and the text is for people only.
        .lossy_utf8(true)
        .read_to_string();
    body.unwrap_or_default()
        .replace(char::is_control, " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}
