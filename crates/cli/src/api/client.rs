//! One HTTP exchange: credentials, timeouts, and what a refusal or a dead connection comes to.

use std::io;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::{Agent, AsSendBody, Body, Proxy, Timeout};

use super::target::Target;
use crate::exit::{Exit, Failure};

/// An administrative call may take this long.
pub(super) const CALL: Duration = Duration::from_secs(60);
/// A gateway that does not even accept a connection in this time is not there.
const CONNECT: Duration = Duration::from_secs(5);
/// Answers to administrative calls are held in memory up to this many bytes.
const MAX_ANSWER: u64 = 64 << 20;
/// An error text is shown up to this many bytes.
const MAX_ERROR: u64 = 4 << 10;

/// A gateway to talk to.
pub(crate) struct Client {
    agent: Agent,
    target: Target,
}

impl Client {
    /// Connects to nothing yet.
    pub(crate) fn new(target: Target) -> Self {
        let proxy = if target.local { None } else { Proxy::try_from_env() };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .user_agent(concat!("nearpath/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .allow_non_standard_methods(true);
        Self { agent: config.build().new_agent(), target }
    }

    /// The gateway's address.
    pub(crate) fn base(&self) -> &str {
        &self.target.base
    }

    /// Whose password is sent, if one is.
    pub(crate) fn user(&self) -> Option<&str> {
        self.target.credentials.as_ref().map(|(user, _)| user.as_str())
    }

    /// Sends a request built by the caller, without the administrator's credentials: what `invoke` needs.
    ///
    /// # Errors
    /// When there is no answer. An error status is an answer.
    pub(crate) fn send(
        &self,
        request: Request<impl AsSendBody>,
        limit: Option<Duration>,
    ) -> Result<Response<Body>, Failure> {
        let request = self.agent.configure_request(request).timeout_global(limit).build();
        self.agent.run(request).map_err(|error| self.unreachable(&error, limit))
    }

    /// An administrative call. Any status that is not a success becomes a failure that begins with `what`.
    pub(super) fn ask(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Body>, Failure> {
        let response = self.exchange(method, path, body, Some(CALL))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.refused(what, response)),
        }
    }

    /// As [`Self::ask`], without a limit in time: for streams.
    pub(super) fn stream(&self, what: &str, path: &str) -> Result<Response<Body>, Failure> {
        let response = self.exchange(Method::GET, path, None::<&()>, None)?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.refused(what, response)),
        }
    }

    /// An administrative exchange with whatever status it brings.
    pub(super) fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        limit: Option<Duration>,
    ) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.target.base));
        if let Some((user, password)) = &self.target.credentials {
            let token = STANDARD.encode(format!("{user}:{password}"));
            request = request.header(header::AUTHORIZATION, format!("Basic {token}"));
        }
        let invalid = |error: http::Error| Failure::new(Exit::Usage, format!("not a valid request: {error}"));
        match body {
            None => self.send(request.body(()).map_err(invalid)?, limit),
            Some(body) => {
                let json = serde_json::to_vec(body).expect("our own types can be written as JSON");
                let request = request.header(header::CONTENT_TYPE, "application/json");
                self.send(request.body(json).map_err(invalid)?, limit)
            }
        }
    }

    /// The JSON of an answer.
    pub(super) fn json<T: DeserializeOwned>(&self, response: Response<Body>) -> Result<T, Failure> {
        let reader = response.into_body().into_with_config().limit(MAX_ANSWER).reader();
        serde_json::from_reader(io::BufReader::new(reader)).map_err(|error| {
            let text = format!("{} answered with something that is not its API's JSON: {error}", self.target.base);
            Failure::new(Exit::Failed, text)
        })
    }

    /// What an error status comes to.
    pub(super) fn refused(&self, what: &str, response: Response<Body>) -> Failure {
        let status = response.status();
        let exit = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::Unauthorised,
            StatusCode::NOT_FOUND => Exit::NotFound,
            _ => Exit::Failed,
        };
        let said = error_text(response);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        let mut text = format!("{what}: {} answered {}{said}", self.target.base, status.as_u16());
        if exit == Exit::Unauthorised {
            text += &format!(" ({})", self.target.origin);
        }
        Failure::new(exit, text)
    }

    fn unreachable(&self, error: &ureq::Error, limit: Option<Duration>) -> Failure {
        let base = &self.target.base;
        let start = "start one with `nearpath up`, or name another with --gateway";
        match error {
            ureq::Error::Timeout(Timeout::Global | Timeout::PerCall | Timeout::RecvResponse | Timeout::RecvBody) => {
                let limit = nearpath_types::duration::format(limit.unwrap_or(CALL));
                Failure::new(Exit::Failed, format!("{base} did not answer within {limit}"))
            }
            ureq::Error::Http(error) => Failure::new(Exit::Usage, format!("not a valid request: {error}")),
            ureq::Error::BadUri(error) => Failure::new(Exit::Usage, format!("not a valid address: {error}")),
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Failure::new(Exit::Unreachable, format!("no gateway at {base}: {start}"))
            }
            error => Failure::new(Exit::Unreachable, format!("no answer from {base}: {error}; {start}")),
        }
    }
}

/// The text of an error answer, as one line.
pub(crate) fn error_text(response: Response<Body>) -> String {
    let body = response.into_body().into_with_config().limit(MAX_ERROR).lossy_utf8(true).read_to_string();
    body.unwrap_or_default().replace(char::is_control, " ").split_whitespace().collect::<Vec<_>>().join(" ")
}
