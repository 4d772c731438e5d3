//! The sockets that the gateway listens on for everybody. That for instances is in the node's [`super::network`].

use std::net::{SocketAddr, UdpSocket};

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
    let sockets = bind::datagrams(addr, plan.threads);
    let sockets = sockets.map_err(UpError::listen("HTTP/3 (--http3 off does without)", addr))?;
    Ok(Http3::new(site.clone(), steered(&site, sockets)))
}

/// The sockets, if the kernel leads packets to the thread that has their connection; else one that has all.
fn steered(site: &h3::Site, mut sockets: Vec<UdpSocket>) -> Vec<UdpSocket> {
    if let [first, _, ..] = &sockets[..]
        && let Err(error) = reuseport::steer(first, &site.steering().program())
    {
        tracing::warn!(%error, "HTTP/3: the kernel does not lead packets to their threads; one thread serves it alone");
        sockets.truncate(1);
    }
    sockets
}
