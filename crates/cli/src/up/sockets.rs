//! The sockets that the gateway listens on for everybody: opened, or taken over from the process before. That for instances is in the
//! node's [`super::network`].

use std::net::{SocketAddr, UdpSocket};

use nearpath_gateway::{Http3, Listener, Zone};
use nearpath_wire::{bind, h3, tls};

use super::plan::{Plan, Tls, UpError};
use super::succession::{Estate, Name, Port};

/// Opened in the host's network namespace, in which they stay wherever their threads go. `kept` is what a successor will get.
pub(super) fn public(plan: &Plan, inherited: &mut Estate, kept: &mut Estate) -> Result<Vec<Listener>, UpError> {
    let open = || bind(plan.listen, plan.threads);
    let sockets =
        inherited.all(Name::Plain, plan.listen, kept, open).map_err(UpError::listen("--listen", plan.listen))?;
    let plain = Listener { zone: Zone::Public, tls: None, sockets, http3: None };
    let encrypted = plan.tls.as_ref().map(|tls| encrypted(plan, tls, inherited, kept)).transpose()?;
    Ok([Some(plain), encrypted].into_iter().flatten().collect())
}

fn encrypted(plan: &Plan, tls: &Tls, inherited: &mut Estate, kept: &mut Estate) -> Result<Listener, UpError> {
    let config = tls::load(&tls.cert, &tls.key).map_err(UpError::part("TLS"))?;
    let open = || bind(tls.listen, plan.threads);
    let sockets =
        inherited.all(Name::Tls, tls.listen, kept, open).map_err(UpError::listen("--tls-listen", tls.listen))?;
    // With port 0 the kernel has chosen one by now.
    let addr = sockets.first().and_then(|socket| socket.local_addr().ok()).unwrap_or(tls.listen);
    let http3 = if tls.http3 { Some(http3(plan, tls, addr, inherited, kept)?) } else { None };
    Ok(Listener { zone: Zone::Public, tls: Some(config), sockets, http3 })
}

fn http3(
    plan: &Plan,
    tls: &Tls,
    addr: SocketAddr,
    inherited: &mut Estate,
    kept: &mut Estate,
) -> Result<Http3, UpError> {
    let listen = || UpError::listen("HTTP/3 (--http3 off does without)", addr);
    let pair = tls::read(&tls.cert, &tls.key).map_err(UpError::part("TLS"))?;
    let site = h3::Site::new(&pair, &plan.gateway.limits, plan.threads).map_err(UpError::part("HTTP/3"))?;
    if inherited.unsteered {
        return Err(UpError::part("--take-over")(
            "the kernel does not lead the packets of HTTP/3 to the process that has their connection: stop the running one, then start",
        ));
    }
    if let Some((told, fds)) = inherited.told(addr) {
        let (port, sockets) = Port::next(site, &told, fds).map_err(listen())?;
        let site = port.site().clone();
        kept.port = Some(port);
        return Ok(Http3::new(site, sockets));
    }
    let sockets = bind::datagrams(addr, plan.threads).map_err(listen())?;
    let port = Port::first(site.clone(), &sockets).map_err(listen())?;
    Ok(Http3::new(site, steered(port, sockets, kept)))
}

/// The sockets, if the kernel leads packets to the thread that has their connection; else one that has all.
fn steered(port: Port, mut sockets: Vec<UdpSocket>, kept: &mut Estate) -> Vec<UdpSocket> {
    match port.steer() {
        Ok(()) => kept.port = Some(port),
        Err(error) => {
            tracing::warn!(%error, "HTTP/3: the kernel does not lead packets to their threads; one thread serves it alone, and nobody can take it over");
            kept.unsteered = true;
            sockets.truncate(1);
        }
    }
    sockets
}
