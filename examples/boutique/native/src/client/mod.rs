//! Calls to other services. [`PeerServices`] is what a service sees; a [`PeerClient`] is the transport behind
//! it.

mod grpc;
mod http;
mod sdk;

use bytes::Bytes;

use self::grpc::GrpcPeerClient;
pub(crate) use self::grpc::{BytesCodec, grpc_code};
use self::http::HttpPeerClient;
use self::sdk::SdkPeerClient;
use crate::api::{MessageEncoding, ServiceCall};
use crate::args::ServiceArgs;
use crate::message::{ForwardedHeaders, ServiceError};

/// A way to the other services.
pub(crate) enum PeerClient {
    Sdk(SdkPeerClient),
    Http(HttpPeerClient),
    Grpc(GrpcPeerClient),
}

impl PeerClient {
    pub(crate) fn new_http(args: &ServiceArgs) -> Self {
        Self::Http(HttpPeerClient::new(args))
    }

    pub(crate) fn new_grpc(args: &ServiceArgs) -> Result<Self, tonic::transport::Error> {
        Ok(Self::Grpc(GrpcPeerClient::new(args)?))
    }

    /// On nearpath's SDK.
    pub(crate) fn new_sdk(args: &ServiceArgs) -> Self {
        Self::Sdk(SdkPeerClient {
            shm_only: args.shm_only,
        })
    }
}

/// Answer of a service.
pub(crate) struct PeerReply {
    pub(crate) status: u16,
    /// The platform says so, not the service.
    pub(crate) platform: bool,
    pub(crate) body: Bytes,
}

/// Services that may be called while a request is answered.
pub(crate) struct PeerServices<'r> {
    line: &'r PeerClient,
    encoding: MessageEncoding,
    passed: &'r ForwardedHeaders,
}

impl<'r> PeerServices<'r> {
    pub(crate) fn new(
        line: &'r PeerClient,
        encoding: MessageEncoding,
        passed: &'r ForwardedHeaders,
    ) -> Self {
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
    pub(crate) async fn call_service<C: ServiceCall>(
        &self,
        asked: &C,
    ) -> Result<C::Answer, ServiceError> {
        let body = self.encoding.encode_message(asked);
        let reply = match self.line {
            PeerClient::Sdk(line) => line.send_call(C::TO, C::PATH, body, self.passed).await?,
            PeerClient::Http(line) => {
                Box::pin(line.send_call(C::TO, C::PATH, self.encoding, body, self.passed)).await?
            }
            PeerClient::Grpc(line) => {
                Box::pin(line.send_call(C::TO, C::RPC, body, self.passed)).await?
            }
        };
        if reply.status != 200 {
            return Err(reply_error(C::TO.name(), &reply));
        }
        let answer = self.encoding.decode_message(&reply.body);
        answer.map_err(|error| {
            ServiceError::new(502, format!("{}'s answer is {error}", C::TO.name()))
        })
    }
}

fn reply_error(service: &str, reply: &PeerReply) -> ServiceError {
    let own = (400..500).contains(&reply.status) && !reply.platform;
    let text = String::from_utf8_lossy(&reply.body);
    let text = format!("{service} answered {}: {}", reply.status, text.trim());
    ServiceError::new(if own { reply.status } else { 502 }, text)
}
