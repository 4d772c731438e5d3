//! How a call is made.

use std::time::Duration;

use nearpath_domain::clock;

use crate::context::CallContext;
use crate::error::Error;
use crate::head::HeaderFields;
use crate::message::Request;

/// Options of a call. `CallOptions::default()` is a POST to `/` without a deadline.
#[derive(Debug, Clone, Default)]
pub struct CallOptions {
    pub(crate) head: HeaderFields,
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) idempotent: bool,
    pub(crate) shm_only: bool,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) context: Option<CallContext>,
}

impl CallOptions {
    /// For a call made on behalf of a request, outside its handler (in a task that the handler spawned): with the caller's
    /// deadline and trace. Calls inside a handler have them anyway.
    pub fn from_request(request: &Request) -> Self {
        Self {
            context: Some(request.context),
            ..Self::default()
        }
    }

    /// Sets the method; default `POST`.
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// Sets the path after the function's name, with the query; default `/`.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Adds a header field.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Head`] when it is none: see [`HeaderFields::push_field`].
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.head.push_field(name, value.as_ref())?;
        Ok(self)
    }

    /// How long the answer may take. A call inside a handler takes no longer than its own caller waits, even without this.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// Running it twice does no harm: when the called instance dies before it answered, the call is made once more. Without
    /// this only a call that was provably not sent goes another way.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Sets the URL to which the gateway posts the answer of [`crate::call_later`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Head`] when it cannot be a field's value.
    pub fn callback(self, url: &str) -> Result<Self, Error> {
        self.header("x-callback-url", url)
    }

    /// How long nothing may come of an exchange that a thread waits for ([`crate::blocking::ThreadEndpoint::next_event`]); then it has failed.
    pub fn idle_timeout(mut self, longest: Duration) -> Self {
        self.idle_timeout = Some(longest);
        self
    }

    /// The fields that hand the deadline and the trace on, for who makes a call with another client: `traceparent` and
    /// `x-timeout`, as far as they are known.
    pub fn propagated_fields(&self) -> Vec<(&'static str, String)> {
        CallContext::current().with_options(self).fields().collect()
    }

    /// Shared memory or nothing: an error of [`crate::ErrorKind::Unsent`] rather than a call over HTTP.
    pub fn shm_only(mut self) -> Self {
        self.shm_only = true;
        self
    }
}

/// The part of a context that depends on a call's options.
impl CallContext {
    /// For a call: the nearer of both deadlines, and the trace that its own fields name.
    pub(crate) fn with_options(self, ask: &CallOptions) -> Self {
        let this = ask
            .context
            .unwrap_or(self)
            .with_traceparent(ask.head.get("traceparent"));
        let own = ask.deadline.map(clock::deadline_after);
        let deadline = [own, Some(this.deadline).filter(|at| *at != 0)]
            .into_iter()
            .flatten()
            .min();
        Self {
            deadline: deadline.unwrap_or(0),
            ..this
        }
    }
}
