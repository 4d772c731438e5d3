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

use super::Shop;
use crate::Outcome;
use crate::line::{Raw, code_of};
use crate::words::{PASSED_ON, Problem, Request};

/// Serves until the process is told to stop.
pub(crate) async fn serve(listen: SocketAddr, shop: Rc<Shop>) -> Outcome {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        spawn_local(connection(stream, shop.clone()));
    }
}

async fn connection(stream: TcpStream, shop: Rc<Shop>) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = service_fn(|request| answer(request, shop.clone()));
    let _ = http2::Builder::new(LocalExec)
        .serve_connection(TokioIo::new(stream), service)
        .await; // who breaks off is no news
}

async fn answer(
    request: http::Request<Incoming>,
    shop: Rc<Shop>,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    Ok(Grpc::new(Raw).unary(Once { shop, path }, request).await)
}

/// The method that one request names.
struct Once {
    shop: Rc<Shop>,
    /// `/SERVICE/CALL`.
    path: String,
}

impl UnaryService<Bytes> for Once {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>>>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let shop = self.shop.clone();
        let request = asked(&self.path, &shop, request);
        Box::pin(async move {
            let answer = shop.answer(&request).await;
            answer
                .map(|response| Response::new(response.body))
                .map_err(status)
        })
    }
}

fn asked(path: &str, shop: &Shop, request: tonic::Request<Bytes>) -> Request {
    let text = |name| {
        Some((
            name,
            request.metadata().get(name)?.to_str().ok()?.to_owned(),
        ))
    };
    let passed = PASSED_ON.into_iter().filter_map(text).collect();
    let path = path
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(shop.service.name()))
        .unwrap_or(path);
    Request {
        passed,
        ..Request::call(path, shop.encoding, request.into_inner())
    }
}

fn status(problem: Problem) -> Status {
    Status::new(code_of(problem.status), problem.text)
}
