//! The sockets that the gateway listens on for everybody. That for instances is in the node's [`super::network`].

use nearpath_gateway::{Listener, Zone};

use super::plan::{Plan, UpError};

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
