//! The gateway alone, in front of fixed endpoints: `alone LISTEN THREADS NAME=ADDRESS:PORT…`.
//! `curl http://LISTEN/function/NAME` goes to one of the endpoints of that name.

use std::sync::Arc;

use nearpath_daemon::{drain, metrics::MetricsRegistry};
use nearpath_gateway::{Gateway, GatewayListener, GatewaySettings, ListenerZone, NoControl, fixed};
use nearpath_types::FunctionPolicy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, threads, endpoints @ ..] = &arguments[..] else {
        return Err("see the first lines of this file".into());
    };
    let threads = threads.parse()?;
    let endpoints = endpoints
        .iter()
        .map(|text| fixed::parse_endpoint(text))
        .collect::<Result<Vec<_>, _>>()?;
    let gateway = Gateway::new(
        GatewaySettings::default(),
        Arc::new(NoControl),
        &MetricsRegistry::default(),
    );
    gateway.publish(&fixed::build_snapshot(
        &endpoints,
        &FunctionPolicy::default(),
    ));
    let sockets = nearpath_wire::bind_tcp(listen.parse()?, threads)?;
    let (trigger, watch) = drain::channel();
    let public = GatewayListener {
        zone: ListenerZone::Public,
        tls: None,
        sockets,
        http3: None,
        node_quic: None,
        handed_over: None,
    };
    gateway
        .serve(vec![public], threads, Arc::new(|| Ok(())), watch)?
        .join_all()?;
    drop(trigger);
    Ok(())
}
