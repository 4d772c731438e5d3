//! Calls over gRPC, one connection to each service. Messages are encoded before they come here, as
//! for the other transports; what remains is gRPC's frame.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::PeerReply;
use crate::args::ServiceArgs;
use crate::message::{ForwardedHeaders, ServiceError};
use crate::services::ShopService;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct GrpcPeerClient(HashMap<ShopService, Channel>);

impl GrpcPeerClient {
    /// Connections are made at the first call.
    pub(super) fn new(args: &ServiceArgs) -> Result<Self, tonic::transport::Error> {
        let channel = |addr| {
            Ok(Endpoint::from_shared(format!("http://{addr}"))?
                .tcp_nodelay(true)
                .connect_lazy())
        };
        let peers = args
            .peers
            .iter()
            .map(|(service, addr)| Ok((*service, channel(addr)?)));
        Ok(Self(peers.collect::<Result<_, tonic::transport::Error>>()?))
    }

    pub(super) async fn send_call(
        &self,
        to: ShopService,
        rpc: &'static str,
        body: Bytes,
        passed: &ForwardedHeaders,
    ) -> Result<PeerReply, ServiceError> {
        let channel = self.0.get(&to).cloned();
        let channel = channel
            .ok_or_else(|| ServiceError::new(502, format!("{}: no address is known", to.name())))?;
        let mut request = Request::new(body);
        for (name, value) in passed {
            if let Ok(value) = MetadataValue::try_from(value) {
                request.metadata_mut().insert(*name, value);
            }
        }
        let exchange = tokio::time::timeout(CALL_TIMEOUT, exchange(channel, rpc, request)).await;
        let answer =
            exchange.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
        Ok(answer.unwrap_or_else(to_reply))
    }
}

async fn exchange(
    channel: Channel,
    rpc: &'static str,
    request: Request<Bytes>,
) -> Result<PeerReply, Status> {
    let mut client = Client::new(channel);
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let answer = client
        .unary(request, PathAndQuery::from_static(rpc), BytesCodec)
        .await?;
    Ok(PeerReply {
        status: 200,
        platform: false,
        body: answer.into_inner(),
    })
}

fn to_reply(status: Status) -> PeerReply {
    let code = match status.code() {
        Code::InvalidArgument => 400,
        Code::NotFound => 404,
        Code::Unimplemented => 405,
        Code::FailedPrecondition => 409,
        _ => 502,
    };
    PeerReply {
        status: code,
        platform: code == 502,
        body: Bytes::from(status.message().to_owned()),
    }
}

/// Maps an HTTP status to a gRPC code.
pub(crate) fn grpc_code(status: u16) -> Code {
    match status {
        400 => Code::InvalidArgument,
        404 => Code::NotFound,
        405 => Code::Unimplemented,
        409 => Code::FailedPrecondition,
        _ => Code::Internal,
    }
}

/// Passes bytes as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.reserve(item.len());
        into.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
