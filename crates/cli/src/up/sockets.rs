//! The sockets that the gateway listens on for everybody. That for instances is in the node's [`super::network`].

use std::net::SocketAddr;

use nearpath_gateway::{Http3, Listener, Zone};
use nearpath_kernel::reuseport;
use nearpath_wire::{bind, h3, tls};

use super::plan::{Plan, Tls, UpError};

/// Opened in the host's network namespace, in which they stay wherever their threads go.
pub(super) fn public(plan: &Plan) -> Result<Vec<Listener>, UpError> {
    let sockets = bind(plan.listen, plan.threads).map_err(UpError::listen("--listen", plan.listen))?;
    let plain = Listener { zone: Zone::Public, tls: None, sockets, http3: None };
    let encrypted = plan.tls.as_ref().map(|tls| encrypted(plan, tls)).transpose()?;
    Ok([Some(plain), encrypted].into_iter().flatten().collect())
}

fn encrypted(plan: &Plan, tls: &Tls) -> Result<Listener, UpError> {
    let config = tls::load(&tls.cert, &tls.key).map_err(UpError::part("TLS"))?;
    let sockets = bind(tls.listen, plan.threads).map_err(UpError::listen("--tls-listen", tls.listen))?;
    // With port 0 the kernel has chosen one by now.
    let addr = sockets.first().and_then(|socket| socket.local_addr().ok()).unwrap_or(tls.listen);
    let http3 = if tls.http3 { Some(http3(plan, tls, addr)?) } else { None };
    Ok(Listener { zone: Zone::Public, tls: Some(config), sockets, http3 })
}

fn http3(plan: &Plan, tls: &Tls, addr: SocketAddr) -> Result<Http3, UpError> {
    let pair = tls::read(&tls.cert, &tls.key).map_err(UpError::part("TLS"))?;
    let site = h3::Site::new(&pair, &plan.gateway.limits, plan.threads).map_err(UpError::part("HTTP/3"))?;
    let sockets = bind::datagrams(addr, plan.threads).map_err(UpError::listen("HTTP/3 (--http3 off does without)", addr))?;
    let mut http3 = Http3 { site, sockets };
    if let Some(first) = http3.sockets.first().filter(|_| plan.threads > 1)
        && let Err(error) = reuseport::steer(first, &http3.site.steering().program())
    {
        tracing::warn!(%error, "HTTP/3: the kernel does not lead packets to their threads; one thread serves it alone");
        http3.sockets.truncate(1);
    }
    Ok(http3)
}
