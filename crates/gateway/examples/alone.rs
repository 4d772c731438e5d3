//! The gateway alone, in front of fixed endpoints: `alone LISTEN THREADS NAME=ADDRESS:PORT…`.
//! `curl http://LISTEN/function/NAME` goes to one of the endpoints of that name.

use std::sync::Arc;

use nearpath_daemon::{drain, metrics::Registry};
use nearpath_gateway::{Gateway, Listener, NoControl, Settings, Zone, fixed};
use nearpath_types::Policy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, threads, endpoints @ ..] = &arguments[..] else {
        return Err("see the first lines of this file".into());
    };
    let threads = threads.parse()?;
    let endpoints = endpoints.iter().map(|text| fixed::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let gateway = Gateway::new(Settings::default(), Arc::new(NoControl), &Registry::default());
    gateway.publish(&fixed::snapshot(&endpoints, &Policy::default()));
    let sockets = nearpath_wire::bind(listen.parse()?, threads)?;
    let (trigger, watch) = drain::channel();
    let public = Listener { zone: Zone::Public, tls: None, sockets, http3: None };
    gateway.serve(vec![public], threads, Arc::new(|| Ok(())), watch)?.join()?;
    drop(trigger);
    Ok(())
}
