//! The shop of ten functions, each a plain `async fn(&Request, &Peers) -> Result<Response, Problem>`.
//!
//! [`services`] decide and know no transport. A [`line`] carries their calls to each other: nearpath's SDK, HTTP or gRPC. A [`host`] takes the calls that come in, by the same three. [`goods`] is what they say to each other, written
//! once: JSON through memory and over HTTP, protobuf over gRPC. One process is one service with one thread.
#![forbid(unsafe_code)]

mod args;
mod goods;
mod host;
mod line;
mod money;
mod page;
mod services;
mod words;

use clap::Parser;

use crate::args::{Args, Transport};
use crate::line::Line;

/// As in nearpath: what differs between the transports is the transport.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome {
    let args = Args::parse();
    if args.transport == Transport::Shm {
        return host::sdk::serve(&args);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(args))
}

async fn run(args: Args) -> Outcome {
    let grpc = args.transport == Transport::Grpc;
    let shop = args.shop(if grpc {
        Line::grpc(&args)?
    } else {
        Line::http(&args)
    });
    match grpc && !args.service.is_the_door() {
        true => host::grpc::serve(args.listen, shop).await,
        false => host::http::serve(args.listen, shop).await,
    }
}
