//! The sockets that the gateway listens on: outside for everybody, and inside the node's network for instances.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use nearpath_gateway::{Listener, Zone};
use nearpath_kernel::sandbox::Isolation;
use nearpath_kernel::switch::Switch;

use super::plan::{Plan, UpError};

/// The gateway's address inside the node's network; instances know it as `gateway`.
pub(super) const GATEWAY_IP: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);
/// The gateway's port inside the node's network.
pub(super) const INNER_PORT: u16 = 8080;

/// Opened in the host's network namespace, in which they stay wherever their threads go.
pub(super) fn public(plan: &Plan) -> Result<Vec<Listener>, UpError> {
    let bind = |what, addr| nearpath_wire::bind(addr, plan.threads).map_err(UpError::listen(what, addr));
    let mut listeners = vec![Listener { zone: Zone::Public, tls: None, sockets: bind("--listen", plan.listen)? }];
    if let Some(tls) = &plan.tls {
        let config = nearpath_wire::tls::load(&tls.cert, &tls.key).map_err(UpError::part("TLS"))?;
        let sockets = bind("--tls-listen", tls.listen)?;
        listeners.push(Listener { zone: Zone::Public, tls: Some(config), sockets });
    }
    Ok(listeners)
}

pub(super) fn switch(isolation: Isolation) -> Result<Option<Arc<Switch>>, UpError> {
    match isolation {
        Isolation::None => Ok(None),
        _ => {
            Switch::create(GATEWAY_IP).map(|switch| Some(Arc::new(switch))).map_err(UpError::part("the node's network"))
        }
    }
}

/// Opened by a thread that joins the node's network for it.
pub(super) fn inner(switch: Option<&Arc<Switch>>, threads: usize) -> Result<Option<Listener>, UpError> {
    let Some(switch) = switch.cloned() else { return Ok(None) };
    let open = move || {
        switch.enter()?;
        nearpath_wire::bind((GATEWAY_IP, INNER_PORT).into(), threads)
    };
    let opened = std::thread::spawn(open).join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
    let sockets = opened.map_err(UpError::part("the gateway's inner listener"))?;
    Ok(Some(Listener { zone: Zone::Inner, tls: None, sockets }))
}
