//! Calls over HTTP/1.1, on connections that are kept.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;

use super::PeerReply;
use crate::api::MessageEncoding;
use crate::args::ServiceArgs;
use crate::message::{ForwardedHeaders, ServiceError};
use crate::services::ShopService;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

type HttpSender = SendRequest<Full<Bytes>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) struct HttpPeerClient {
    peers: HashMap<ShopService, SocketAddr>,
    gateway: Option<SocketAddr>,
    /// Kept connections.
    idle: RefCell<HashMap<SocketAddr, Vec<HttpSender>>>,
}

impl HttpPeerClient {
    pub(super) fn new(args: &ServiceArgs) -> Self {
        Self {
            peers: args.peers.iter().copied().collect(),
            gateway: args.gateway_addr(),
            idle: RefCell::default(),
        }
    }

    pub(super) async fn send_call(
        &self,
        to: ShopService,
        path: &'static str,
        encoding: MessageEncoding,
        body: Bytes,
        passed: &ForwardedHeaders,
    ) -> Result<PeerReply, ServiceError> {
        let failed = |error: BoxError| ServiceError::new(502, format!("{}: {error}", to.name()));
        let (addr, uri) = self.target_uri(to, path).map_err(failed)?;
        let request = build_request(addr, uri, encoding, body, passed).map_err(failed)?;
        let exchange = tokio::time::timeout(CALL_TIMEOUT, self.exchange(addr, request));
        exchange
            .await
            .unwrap_or_else(|_| Err("no answer in time".into()))
            .map_err(failed)
    }

    fn target_uri(
        &self,
        to: ShopService,
        path: &'static str,
    ) -> Result<(SocketAddr, Uri), BoxError> {
        if let Some(addr) = self.peers.get(&to) {
            return Ok((*addr, Uri::from_static(path)));
        }
        let gateway = self
            .gateway
            .ok_or("no address is known: say --peer or --gateway")?;
        Ok((
            gateway,
            format!("/function/{}{path}", to.name()).try_into()?,
        ))
    }

    async fn exchange(
        &self,
        addr: SocketAddr,
        request: Request<Full<Bytes>>,
    ) -> Result<PeerReply, BoxError> {
        let mut sender = match self.take_idle(addr) {
            Some(sender) => sender,
            None => nearpath_wire::client::connect_http1(addr, CALL_TIMEOUT).await?,
        };
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        self.idle.borrow_mut().entry(addr).or_default().push(sender);
        let platform = head.headers.contains_key("x-openfaas-internal");
        Ok(PeerReply {
            status: head.status.as_u16(),
            platform,
            body,
        })
    }

    /// The connection used last that is still open.
    fn take_idle(&self, addr: SocketAddr) -> Option<HttpSender> {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.get_mut(&addr)?;
        std::iter::from_fn(|| kept.pop()).find(|sender| !sender.is_closed())
    }
}

fn build_request(
    addr: SocketAddr,
    uri: Uri,
    encoding: MessageEncoding,
    body: Bytes,
    passed: &ForwardedHeaders,
) -> Result<Request<Full<Bytes>>, BoxError> {
    let mut request = Request::new(Full::new(body));
    (*request.method_mut(), *request.uri_mut()) = (Method::POST, uri);
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::try_from(addr.to_string())?);
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static(encoding.content_type()),
    );
    for (name, value) in passed {
        headers.insert(*name, HeaderValue::try_from(value)?);
    }
    Ok(request)
}
