//! What the program is told: which service, by which transport, where the others are.

use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;

use clap::{Parser, ValueEnum};

use crate::goods::Encoding;
use crate::host::Shop;
use crate::line::Line;
use crate::services::Service;

/// One service of the shop.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Which service this process is
    #[arg(long, value_enum)]
    pub(crate) service: Service,

    /// How the services call each other
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) transport: Transport,

    /// Where to listen: for HTTP, or for gRPC when that is the transport and this is not the frontend
    #[arg(long, default_value = "127.0.0.1:5000", value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,

    /// Where a service is; may be given more than once. The others are called through the gateway
    #[arg(long = "peer", value_name = "NAME=ADDR:PORT", value_parser = peer)]
    pub(crate) peers: Vec<(Service, SocketAddr)>,

    /// Where services that no --peer names are called, as /function/NAME
    #[arg(
        long,
        env = "gateway_url",
        default_value = "http://gateway:8080",
        value_name = "URL"
    )]
    gateway: String,

    /// No call over HTTP where memory cannot take it, but an error
    #[arg(long)]
    pub(crate) near_only: bool,

    /// What services say to each other is written as; gRPC is always protobuf
    #[arg(long, value_enum, default_value = "json")]
    encoding: Encoding,
}

/// How calls go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// On nearpath's SDK: through shared memory, and over HTTP through the gateway to whom no memory leads
    Shm,
    /// HTTP/1.1 over kept connections
    Http,
    /// gRPC
    Grpc,
}

impl Args {
    /// The service with its way to the others.
    pub(crate) fn shop(&self, line: Line) -> Rc<Shop> {
        Rc::new(Shop {
            service: self.service,
            encoding: self.encoding(),
            line,
        })
    }

    pub(crate) fn encoding(&self) -> Encoding {
        if self.transport == Transport::Grpc {
            Encoding::Protobuf
        } else {
            self.encoding
        }
    }

    /// The gateway's address; none where its name is not known, as outside of an instance.
    pub(crate) fn gateway(&self) -> Option<SocketAddr> {
        let place = self.gateway.strip_prefix("http://")?.trim_end_matches('/');
        let place = if place.contains(':') {
            place.to_owned()
        } else {
            format!("{place}:80")
        };
        place.to_socket_addrs().ok()?.next()
    }
}

fn peer(text: &str) -> Result<(Service, SocketAddr), String> {
    let (name, addr) = text.split_once('=').ok_or("a peer is NAME=ADDR:PORT")?;
    let addr = addr
        .parse()
        .map_err(|_| format!("{addr:?} is not ADDR:PORT"))?;
    Ok((Service::from_str(name, false)?, addr))
}
