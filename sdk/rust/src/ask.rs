//! How a call is made.

use std::time::Duration;

use crate::context::Context;
use crate::error::Error;
use crate::head::Head;
use crate::message::Request;

/// What a call may have beside its payload. `Ask::default()` is a POST to `/` without a deadline.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    pub(crate) head: Head,
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) idempotent: bool,
    pub(crate) near_only: bool,
    pub(crate) silence: Option<Duration>,
    pub(crate) context: Option<Context>,
}

impl Ask {
    /// For a call made on behalf of a request, outside its handler (in a task that the handler spawned): with the caller's
    /// deadline and trace. Calls inside a handler have them anyway.
    pub fn following(request: &Request) -> Self {
        Self { context: Some(request.context), ..Self::default() }
    }

    /// The method; `POST` unless told.
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// What follows the function's name, with the query: `/` unless told.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Adds a header field.
    ///
    /// # Errors
    /// [`crate::Kind::Head`] when it is none: see [`Head::push`].
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.head.push(name, value.as_ref())?;
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

    /// Where the gateway sends the answer of [`crate::call_later`], as a POST.
    ///
    /// # Errors
    /// [`crate::Kind::Head`] when it cannot be a field's value.
    pub fn callback(self, url: &str) -> Result<Self, Error> {
        self.header("x-callback-url", url)
    }

    /// How long nothing may come of an exchange that a thread waits for ([`crate::blocking::Party::step`]); then it has failed.
    pub fn silence(mut self, longest: Duration) -> Self {
        self.silence = Some(longest);
        self
    }

    /// The fields that hand the deadline and the trace on, for who makes a call with another client: `traceparent` and
    /// `x-timeout`, as far as they are known.
    pub fn handed_on(&self) -> Vec<(&'static str, String)> {
        Context::current().narrowed(self).fields().collect()
    }

    /// Shared memory or nothing: an error of [`crate::Kind::Unsent`] rather than a call over HTTP.
    pub fn near_only(mut self) -> Self {
        self.near_only = true;
        self
    }
}
