//! HTTP/1.1: requests of all clients take turns on few connections.
//!
//! A connection serves the next request after one whole response was framed and read, and the
//! request was written in full. hyper tracks both, on either side.
//!
//! [`relay`] handles one request and its response, and [`exchange`] sends it on a connection of
//! [`backend`]. [`request_body`] and [`response_body`] stream the bodies, and `nearpath_wire::hop`
//! removes the hop-by-hop headers. If `cache` is set, [`cache`] decides which responses are stored,
//! and [`cache_exchange`] serves them. [`session`] is one client's connection. HTTP/2 without TLS
//! needs `protocol=tcp`.

mod backend;
mod body_copy;
mod cache;
mod cache_exchange;
mod exchange;
mod prefetch;
mod prefetched;
mod relay;
mod request_body;
mod response_body;
mod session;
mod state;

use std::io;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_types::egress::EgressProtocol;
use tokio::net::TcpStream;

use crate::ClientContext;
use crate::adapter::{Adapter, ClientService};
use session::HttpSession;

/// Headers of one request or response: more than common servers accept (Apache: 100).
const MAX_HEADERS: usize = 1000;

/// The adapter of HTTP/1.1. Its service also fails when a response ends early.
#[derive(Debug)]
pub struct HttpAdapter;

impl Adapter for HttpAdapter {
    fn protocol(&self) -> EgressProtocol {
        EgressProtocol::Http
    }

    fn serve(&self, client: TcpStream, context: ClientContext) -> ClientService {
        Box::pin(serve(client, context))
    }

    fn prefetch_reads(&self, context: &ClientContext) {
        prefetch::prefetch_reads(context);
    }
}

async fn serve(client: TcpStream, context: ClientContext) -> io::Result<()> {
    let session = HttpSession::open(context);
    let answer = service_fn(|request| {
        let session = session.clone();
        async move { Ok::<_, std::convert::Infallible>(relay::relay_request(session, request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    // Header case and the absence of `Date` pass through unchanged: the adapter is not visible to
    // either side.
    server
        .preserve_header_case(true)
        .auto_date_header(false)
        .max_headers(MAX_HEADERS);
    server
        .serve_connection(TokioIo::new(client), answer)
        .with_upgrades()
        .await
        .map_err(io::Error::other)?;
    // The tunnel needs the client's socket, which the server loop has released only now.
    let tunnel = session.upgraded_tunnel.take();
    if let Some(tunnel) = tunnel {
        tunnel.await;
    }
    Ok(())
}
