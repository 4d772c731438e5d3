//! gRPC. hyper carries HTTP/2 as it does under tonic's own server, without that server's layers.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_wire::local_executor::LocalExec;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Response, Status};

use super::ServiceServer;
use crate::ServiceResult;
use crate::client::{BytesCodec, grpc_code};
use crate::message::{FORWARDED_HEADERS, ServiceError, ServiceRequest};

/// Serves until the process is told to stop.
pub(crate) async fn serve(listen: SocketAddr, shop: Rc<ServiceServer>) -> ServiceResult {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        spawn_local(serve_connection(stream, shop.clone()));
    }
}

async fn serve_connection(stream: TcpStream, shop: Rc<ServiceServer>) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = service_fn(|request| answer_request(request, shop.clone()));
    let _ = http2::Builder::new(LocalExec)
        .serve_connection(TokioIo::new(stream), service)
        .await; // who breaks off is no news
}

async fn answer_request(
    request: http::Request<Incoming>,
    shop: Rc<ServiceServer>,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    Ok(Grpc::new(BytesCodec)
        .unary(SingleMethod { shop, path }, request)
        .await)
}

/// The method that one request names.
struct SingleMethod {
    shop: Rc<ServiceServer>,
    /// `/SERVICE/CALL`.
    path: String,
}

impl UnaryService<Bytes> for SingleMethod {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>>>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let shop = self.shop.clone();
        let request = to_request(&self.path, &shop, request);
        Box::pin(async move {
            let answer = shop.answer_request(&request).await;
            answer
                .map(|response| Response::new(response.body))
                .map_err(to_status)
        })
    }
}

fn to_request(path: &str, shop: &ServiceServer, request: tonic::Request<Bytes>) -> ServiceRequest {
    let text = |name| {
        Some((
            name,
            request.metadata().get(name)?.to_str().ok()?.to_owned(),
        ))
    };
    let passed = FORWARDED_HEADERS.into_iter().filter_map(text).collect();
    let path = path
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(shop.service.name()))
        .unwrap_or(path);
    ServiceRequest {
        passed,
        ..ServiceRequest::for_call(path, shop.encoding, request.into_inner())
    }
}

fn to_status(problem: ServiceError) -> Status {
    Status::new(grpc_code(problem.status), problem.text)
}
