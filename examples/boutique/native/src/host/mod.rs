//! Takes requests for a service: [`sdk`], [`http`] and [`grpc`] make the same request out of what
//! came.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod sdk;

use crate::api::MessageEncoding;
use crate::client::{PeerClient, PeerServices};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};
use crate::services::ShopService;

/// A service with its way to the others.
pub(crate) struct ServiceServer {
    pub(crate) service: ShopService,
    pub(crate) encoding: MessageEncoding,
    pub(crate) line: PeerClient,
}

impl ServiceServer {
    /// Answers one request.
    pub(crate) async fn answer_request(
        &self,
        request: &ServiceRequest,
    ) -> Result<ServiceResponse, ServiceError> {
        let peers = PeerServices::new(&self.line, self.encoding, &request.passed);
        self.service.answer_request(request, &peers).await
    }
}
