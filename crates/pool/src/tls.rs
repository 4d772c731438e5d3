//! TLS that the node speaks in a function's place (`tls=originate`): the function's plaintext goes over it, sessions are resumed, and the destination's
//! name is checked against the authorities of the system, or of a secret of the function.
//!
//! Adapters put it on what the keeper gives them ([`on`]). Where no protocol is known, [`serve`] carries the function's bytes, and what is kept warm is a
//! connection with TLS on it: each that is given out is replaced, and those that nobody takes grow old and are closed.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::egress::{Host, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::adapters::bench::{Bench, Got, Kept, Reused};
use crate::adapters::socket::Socket;
use crate::adapters::{Idlers, Room, Rooms, Visit};
use crate::destination::Destination;
use crate::keeper::{Lease, Need, NoConnection};
use crate::ledger::Ledger;

/// How the node speaks TLS with one destination; sessions to resume are kept in it.
struct Speaker(Result<(TlsConnector, ServerName<'static>), String>);

impl Room for Speaker {
    fn open(to: &Destination) -> Self {
        Self(connector(to).and_then(|connector| Ok((connector, name(&to.egress.host)?))))
    }

    fn idlers(&self) -> Option<&dyn Idlers> {
        None
    }
}

/// Connections with TLS on them that nobody has used.
struct Ready(Rc<Bench<(), Fresh>>);

#[derive(Debug)]
struct Fresh(Socket);

impl Reused for Fresh {
    fn is_quiet(&self) -> bool {
        self.0.is_quiet()
    }

    fn close(self) {
        tokio::task::spawn_local(self.0.leave(b""));
    }
}

impl Room for Ready {
    fn open(to: &Destination) -> Self {
        Self(Bench::new(to))
    }

    fn idlers(&self) -> Option<&dyn Idlers> {
        Some(&*self.0)
    }
}

/// Carries the bytes of one client over a connection of its own, warm if there is one.
///
/// # Errors
/// When there is no connection, or it breaks: the client's is reset then.
pub async fn serve(mut client: TcpStream, visit: Visit) -> io::Result<()> {
    client.set_nodelay(true)?;
    let taken = tokio::select! {
        biased;
        _ = client.ready(Interest::ERROR) => return Ok(()), // it does not wait any more
        taken = take(&visit) => taken,
    };
    let mut socket = match taken {
        Ok(socket) => socket,
        Err(error) => {
            client.set_zero_linger()?;
            return Err(io::Error::other(error));
        }
    };
    expects(&visit, 1);
    let carried = tokio::io::copy_bidirectional(&mut client, &mut socket).await;
    let (sent, received) = carried.inspect_err(|_| drop(client.set_zero_linger()))?;
    Ledger::count(&visit.ledger.sent, sent);
    Ledger::count(&visit.ledger.received, received);
    Ok(())
}

/// So many clients come soon: has connections ready for them, as far as the destination's `warm` allows and nobody waits for a place.
pub fn expects(visit: &Visit, clients: usize) {
    let (room, warm) = (visit.rooms.of::<Ready>(&visit.destination), visit.destination.egress.warm);
    let most = usize::try_from(warm).unwrap_or(usize::MAX).saturating_sub(room.0.idle());
    for _ in 0..clients.min(most) {
        let (visit, room) = (visit.clone(), room.0.clone());
        tokio::task::spawn_local(async move {
            if visit.backends.need(&visit.destination) != Need::Nobody {
                return;
            }
            // Who takes it will learn what is wrong, if something is.
            if let Ok(socket) = dial(&visit).await {
                room.give_back(&visit, &(), Kept::new(Fresh(socket), Instant::now()));
            }
        });
    }
}

async fn take(visit: &Visit) -> Result<Socket, NoConnection> {
    let room = visit.rooms.of::<Ready>(&visit.destination);
    let deadline = Instant::now() + visit.destination.egress.wait;
    match room.0.acquire(visit, &(), deadline).await? {
        Got::Used(kept) => Ok(kept.item.0),
        Got::New(lease) => in_time(visit, deadline, on(lease, &visit.destination, &visit.rooms)).await,
    }
}

async fn dial(visit: &Visit) -> Result<Socket, NoConnection> {
    let deadline = Instant::now() + visit.destination.egress.wait;
    let lease = visit.backends.connect(&visit.destination, deadline).await?;
    in_time(visit, deadline, on(lease, &visit.destination, &visit.rooms)).await
}

async fn in_time<T>(
    visit: &Visit,
    deadline: Instant,
    what: impl Future<Output = Result<T, NoConnection>>,
) -> Result<T, NoConnection> {
    let late = || NoConnection::Refused { to: visit.destination.key.to.clone(), error: io::ErrorKind::TimedOut.into() };
    tokio::time::timeout_at(deadline.into(), what).await.unwrap_or_else(|_| Err(late()))
}

/// What the function's bytes go through: the connection as it is, or TLS on it where the destination asks for that.
///
/// # Errors
/// When the handshake fails: the certificate does not fit, or the destination speaks no TLS.
pub async fn on(lease: Lease, to: &Destination, rooms: &Rooms) -> Result<Socket, NoConnection> {
    if to.egress.tls == Tls::Pass {
        return Ok(Socket::plain(lease));
    }
    let failed = |error| NoConnection::Refused { to: to.key.to.clone(), error };
    let speaker = rooms.of::<Speaker>(to);
    let (connector, name) = speaker.0.as_ref().map_err(|why| failed(io::Error::other(why.clone())))?;
    let stream = connector.connect(name.clone(), lease.stream).await.map_err(failed)?;
    Ok(Socket::tls(stream, lease.gone))
}

fn connector(to: &Destination) -> Result<TlsConnector, String> {
    let Tls::Originate { ca } = &to.egress.tls else { return Err("it speaks no TLS".into()) };
    let roots = match ca {
        Some(secret) => named(to, secret)?,
        None => systems(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth();
    // Without it a server that speaks HTTP/2, too, may choose that.
    if to.egress.protocol == nearpath_types::egress::Protocol::Http {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Authorities of a secret.
fn named(to: &Destination, secret: &str) -> Result<RootCertStore, String> {
    let pem = to.secrets.get(secret).ok_or_else(|| format!("`ca=secret:{secret}`: the function has no such secret"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("`ca=secret:{secret}` is no PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("`ca=secret:{secret}`: {error}"))?;
    }
    if roots.is_empty() { Err(format!("`ca=secret:{secret}` holds no certificate")) } else { Ok(roots) }
}

/// Authorities of the machine; those that are not understood are left out.
fn systems() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn name(host: &Host) -> Result<ServerName<'static>, String> {
    match host {
        Host::Name(name) => ServerName::try_from(name.clone()).map_err(|error| format!("{name}: {error}")),
        Host::V4(address) => Ok(ServerName::from(std::net::IpAddr::V4(*address))),
        Host::V6(address) => Ok(ServerName::from(std::net::IpAddr::V6(*address))),
        Host::Below(name) => Err(format!("*.{name}: no certificate can be checked without a whole name")),
    }
}
