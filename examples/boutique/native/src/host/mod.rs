//! Takes requests for a service: [`sdk`], [`http`] and [`grpc`] make the same request out of what came.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod sdk;

use crate::goods::Encoding;
use crate::line::{Line, Peers};
use crate::services::Service;
use crate::words::{Problem, Request, Response};

/// A service with its way to the others.
pub(crate) struct Shop {
    pub(crate) service: Service,
    pub(crate) encoding: Encoding,
    pub(crate) line: Line,
}

impl Shop {
    /// Answers one request.
    pub(crate) async fn answer(&self, request: &Request) -> Result<Response, Problem> {
        let peers = Peers::new(&self.line, self.encoding, &request.passed);
        self.service.answer(request, &peers).await
    }
}
