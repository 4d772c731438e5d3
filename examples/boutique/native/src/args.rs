//! Arguments: the service, its transport, and the addresses of the others.

use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;

use clap::{Parser, ValueEnum};

use crate::api::MessageEncoding;
use crate::client::PeerClient;
use crate::host::ServiceServer;
use crate::services::ShopService;

/// Service of the shop.
#[derive(Parser)]
#[command(version)]
pub(crate) struct ServiceArgs {
    /// Service of this process
    #[arg(long, value_enum)]
    pub(crate) service: ShopService,

    /// Transport of calls between services
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) transport: ServiceTransport,

    /// Listening address: for HTTP, or for gRPC if that is the transport and this is not the
    /// frontend
    #[arg(long, default_value = "127.0.0.1:5000", value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,

    /// Address of a service; may be repeated. Other services are called through the gateway
    #[arg(long = "peer", value_name = "NAME=ADDR:PORT", value_parser = parse_peer)]
    pub(crate) peers: Vec<(ShopService, SocketAddr)>,

    /// Gateway for services without --peer, called as /function/NAME
    #[arg(
        long,
        env = "gateway_url",
        default_value = "http://gateway:8080",
        value_name = "URL"
    )]
    gateway: String,

    /// No call over HTTP where memory cannot take it, but an error
    #[arg(long)]
    pub(crate) shm_only: bool,

    /// Encoding of messages between services; gRPC is always protobuf
    #[arg(long, value_enum, default_value = "json")]
    encoding: MessageEncoding,
}

/// Transports of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceTransport {
    /// On nearpath's SDK: through shared memory, and over HTTP through the gateway to whom no
    /// memory leads
    Shm,
    /// HTTP/1.1 over kept connections
    Http,
    /// gRPC
    Grpc,
}

impl ServiceArgs {
    /// The service with its way to the others.
    pub(crate) fn build_server(&self, line: PeerClient) -> Rc<ServiceServer> {
        Rc::new(ServiceServer {
            service: self.service,
            encoding: self.encoding(),
            line,
        })
    }

    pub(crate) fn encoding(&self) -> MessageEncoding {
        if self.transport == ServiceTransport::Grpc {
            MessageEncoding::Protobuf
        } else {
            self.encoding
        }
    }

    /// The gateway's address; none where its name is not known, as outside of an instance.
    pub(crate) fn gateway_addr(&self) -> Option<SocketAddr> {
        let place = self.gateway.strip_prefix("http://")?.trim_end_matches('/');
        let place = if place.contains(':') {
            place.to_owned()
        } else {
            format!("{place}:80")
        };
        place.to_socket_addrs().ok()?.next()
    }
}

fn parse_peer(text: &str) -> Result<(ShopService, SocketAddr), String> {
    let (name, addr) = text.split_once('=').ok_or("a peer is NAME=ADDR:PORT")?;
    let addr = addr
        .parse()
        .map_err(|_| format!("{addr:?} is not ADDR:PORT"))?;
    Ok((ShopService::from_str(name, false)?, addr))
}
