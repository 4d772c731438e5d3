//! Options of `nearpath node` as typed.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use nearpath_server::GatewaySettings;
use nearpath_types::NodeName;

use super::args::UpArgs;

/// Options of `nearpath node`: those of `nearpath up`, and the source.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
    /// Serve what this folder declares: nodes.yml, stack files and handlers. Changes are applied by
    /// themselves, and the API refuses changes
    #[arg(long, env = "NEARPATH_SOURCE", value_name = "DIR")]
    pub source: PathBuf,

    /// Name this node as nodes.yml does; default: this machine's host name
    #[arg(long, env = "NEARPATH_NODE_NAME", value_name = "NAME")]
    pub name: Option<NodeName>,

    /// Read secrets from this folder, NAME or NAMESPACE/NAME; default: secrets in the source
    #[arg(long, value_name = "DIR")]
    pub secrets: Option<PathBuf>,

    /// Call other nodes, and serve them, with the certificates in this folder: node.crt, node.key and
    /// ca.crt, as `nearpath ca issue` makes them
    #[arg(long, env = "NEARPATH_NODE_CERTIFICATES", value_name = "DIR")]
    pub node_certificates: Option<PathBuf>,

    /// Serve other nodes at this address, over TCP and UDP
    #[arg(
        long,
        default_value = "0.0.0.0:8444",
        value_name = "ADDR:PORT",
        requires = "node_certificates"
    )]
    pub node_listen: SocketAddr,

    /// Let other nodes' instances call those of this node directly, over these UDP ports, and the other
    /// way round; for functions with `transport: quic`
    #[arg(
        long,
        env = "NEARPATH_DIRECT_PORTS",
        value_name = "FIRST-LAST",
        requires = "node_certificates",
        value_parser = parse_port_range
    )]
    pub direct_ports: Option<PortRange>,

    /// Call other nodes over TLS with bodies of at least this many bytes, and over QUIC with others
    // Hidden: `nearpath-bench nodes` measures each transport with all sizes by it.
    #[arg(
        long,
        env = "NEARPATH_NODE_BULK_BYTES",
        hide = true,
        default_value_t = GatewaySettings::MIN_BULK_BYTES
    )]
    pub node_bulk_bytes: u64,

    /// Keep at most this many TLS connections to each other node for complete requests; 0: use QUIC
    // Hidden: `nearpath-bench nodes` measures QUIC with small requests by it.
    #[arg(
        long,
        env = "NEARPATH_NODE_CONNECTIONS",
        hide = true,
        default_value_t = GatewaySettings::MAX_NODE_CONNECTIONS
    )]
    pub node_connections: usize,

    /// Options of `nearpath up`.
    #[command(flatten)]
    pub server: UpArgs,
}

/// Ports from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRange(pub RangeInclusive<u16>);

fn parse_port_range(text: &str) -> Result<PortRange, String> {
    let expected = || format!("{text:?}: expected FIRST-LAST, for example 8500-8999");
    let (first, last) = text.split_once('-').ok_or_else(expected)?;
    let port = |text: &str| text.parse::<u16>().map_err(|_| expected());
    let (first, last) = (port(first)?, port(last)?);
    match first > 0 && first <= last {
        true => Ok(PortRange(first..=last)),
        false => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_a_first_and_a_last_port() {
        assert_eq!(parse_port_range("8500-8500"), Ok(PortRange(8500..=8500)));
        for bad in ["", "8500", "0-9", "9-8", "1-65536", "a-b", "1-2-3"] {
            let error = parse_port_range(bad).unwrap_err();
            assert!(error.contains("expected FIRST-LAST"), "{error}");
        }
    }
}
