//! Calls to other services. [`Peers`] is what a service sees; a [`Line`] is the transport behind it.

mod grpc;
mod http;
mod sdk;

use bytes::Bytes;

use self::grpc::Grpc;
pub(crate) use self::grpc::{Raw, code_of};
use self::http::Http;
use self::sdk::Sdk;
use crate::args::Args;
use crate::goods::{Call, Encoding};
use crate::words::{Passed, Problem};

/// A way to the other services.
pub(crate) enum Line {
    Sdk(Sdk),
    Http(Http),
    Grpc(Grpc),
}

impl Line {
    pub(crate) fn http(args: &Args) -> Self {
        Self::Http(Http::new(args))
    }

    pub(crate) fn grpc(args: &Args) -> Result<Self, tonic::transport::Error> {
        Ok(Self::Grpc(Grpc::new(args)?))
    }

    /// On nearpath's SDK.
    pub(crate) fn sdk(args: &Args) -> Self {
        Self::Sdk(Sdk {
            near_only: args.near_only,
        })
    }
}

/// What came back.
pub(crate) struct Parcel {
    pub(crate) status: u16,
    /// The platform says so, not the service.
    pub(crate) platform: bool,
    pub(crate) body: Bytes,
}

/// Whom a service may call while it answers a request.
pub(crate) struct Peers<'r> {
    line: &'r Line,
    encoding: Encoding,
    passed: &'r Passed,
}

impl<'r> Peers<'r> {
    pub(crate) fn new(line: &'r Line, encoding: Encoding, passed: &'r Passed) -> Self {
        Self {
            line,
            encoding,
            passed,
        }
    }

    /// Calls a service.
    ///
    /// # Errors
    /// Its refusals (4xx) become the caller's, anything else is a 502.
    pub(crate) async fn call<C: Call>(&self, asked: &C) -> Result<C::Answer, Problem> {
        let body = self.encoding.write(asked);
        let parcel = match self.line {
            Line::Sdk(line) => line.ask(C::TO, C::PATH, body, self.passed).await?,
            Line::Http(line) => {
                Box::pin(line.ask(C::TO, C::PATH, self.encoding, body, self.passed)).await?
            }
            Line::Grpc(line) => Box::pin(line.ask(C::TO, C::RPC, body, self.passed)).await?,
        };
        if parcel.status != 200 {
            return Err(refused(C::TO.name(), &parcel));
        }
        let answer = self.encoding.read(&parcel.body);
        answer.map_err(|error| Problem::new(502, format!("{}'s answer is {error}", C::TO.name())))
    }
}

fn refused(service: &str, parcel: &Parcel) -> Problem {
    let own = (400..500).contains(&parcel.status) && !parcel.platform;
    let text = String::from_utf8_lossy(&parcel.body);
    let text = format!("{service} answered {}: {}", parcel.status, text.trim());
    Problem::new(if own { parcel.status } else { 502 }, text)
}
