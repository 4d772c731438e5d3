//! The shop of ten functions, each a plain `async fn(&Request, &Peers) -> Result<Response,
//! Problem>`.
//!
//! [`services`] decide and know no transport. A [`client`] carries their calls to each other:
//! nearpath's SDK, HTTP or gRPC. A [`host`] takes the calls that come in, by the same three.
//! [`api`] is what they say to each other, written once: JSON through memory and over HTTP,
//! protobuf over gRPC. One process is one service with one thread.
#![forbid(unsafe_code)]

mod api;
mod args;
mod client;
mod host;
mod message;
mod money;
mod page;
mod services;

use clap::Parser;

use crate::args::{ServiceArgs, ServiceTransport};
use crate::client::PeerClient;

/// As in nearpath: what differs between the transports is the transport.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type ServiceResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ServiceResult {
    let args = ServiceArgs::parse();
    if args.transport == ServiceTransport::Shm {
        return host::sdk::serve(&args);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(args))
}

async fn run(args: ServiceArgs) -> ServiceResult {
    let grpc = args.transport == ServiceTransport::Grpc;
    let shop = args.build_server(if grpc {
        PeerClient::new_grpc(&args)?
    } else {
        PeerClient::new_http(&args)
    });
    match grpc && !args.service.is_entry() {
        true => host::grpc::serve(args.listen, shop).await,
        false => host::http::serve(args.listen, shop).await,
    }
}
