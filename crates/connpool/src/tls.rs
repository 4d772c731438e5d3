//! TLS that the node originates for a function (`tls=originate`). Sessions are resumed. The
//! certificate is checked against the system's authorities, or against those in a secret of the
//! function.
//!
//! Adapters apply it to leases with [`wrap_lease`].

use std::io;
use std::sync::Arc;

use nearpath_types::egress::{EgressHost, EgressTls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::adapter_state::{AdapterRegistry, AdapterState, IdleConnections};
use crate::destination::EgressDestination;
use crate::pool::{ConnectionLease, NoConnection};
use crate::socket::UpstreamSocket;

/// TLS client configuration of one destination, which also caches its sessions; or why there is
/// none.
struct TlsClientState(Result<(TlsConnector, ServerName<'static>), String>);

impl AdapterState for TlsClientState {
    fn for_destination(to: &EgressDestination) -> Self {
        // Built once per key: the connector holds the session cache from which later connections
        // resume.
        Self(
            build_connector(to)
                .and_then(|connector| Ok((connector, server_name(&to.egress.host)?))),
        )
    }

    fn idle_connections(&self) -> Option<&dyn IdleConnections> {
        None
    }
}

/// Returns the lease as it is, or with TLS on it if the destination asks for that.
///
/// # Errors
/// When the handshake fails: the certificate does not fit, or the destination does not speak TLS.
pub async fn wrap_lease(
    lease: ConnectionLease,
    to: &EgressDestination,
    adapters: &AdapterRegistry,
) -> Result<UpstreamSocket, NoConnection> {
    if to.egress.tls == EgressTls::Pass {
        return Ok(UpstreamSocket::from_lease(lease));
    }
    let failed = |error| NoConnection::Refused {
        to: to.key.host_port.clone(),
        error,
    };
    let state = adapters.state_of::<TlsClientState>(to);
    let (connector, name) = state
        .0
        .as_ref()
        .map_err(|reason| failed(io::Error::other(reason.clone())))?;
    let stream = connector
        .connect(name.clone(), lease.stream)
        .await
        .map_err(|error| failed(handshake_error(&error)))?;
    Ok(UpstreamSocket::from_tls(stream, lease.guard))
}

/// Describes a failed handshake: what was tried, what came back, and what to do.
fn handshake_error(error: &io::Error) -> io::Error {
    use rustls::Error::{InvalidCertificate, InvalidMessage};
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let remedy = match cause {
        Some(InvalidMessage(_)) => {
            "the destination answered with something else than TLS, remove `tls=originate` or declare its TLS port"
        }
        Some(InvalidCertificate(_)) => {
            "declare the host by the name in its certificate, and a private authority as `ca=secret:NAME`"
        }
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the destination closed the connection, it may not speak TLS"
        }
        _ => "check the TLS settings of the destination",
    };
    io::Error::new(
        error.kind(),
        format!("TLS handshake failed: {error}: {remedy}"),
    )
}

fn build_connector(to: &EgressDestination) -> Result<TlsConnector, String> {
    let EgressTls::Originate { ca } = &to.egress.tls else {
        return Err("the destination is not declared with tls=originate".into());
    };
    let roots = match ca {
        Some(secret) => roots_from_secret(to, secret)?,
        None => system_roots(),
    };
    // Named explicitly, so that the choice does not depend on the features of other crates in the
    // build.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let alpn = to.egress.protocol.traits().alpn;
    config.alpn_protocols = alpn.into_iter().map(<[u8]>::to_vec).collect();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Reads the authorities in a secret.
fn roots_from_secret(to: &EgressDestination, secret: &str) -> Result<RootCertStore, String> {
    let pem = to.secrets.get(secret).ok_or_else(|| {
        format!("`ca=secret:{secret}`: unknown secret, declare it in the function's `secrets`")
    })?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|error| format!("`ca=secret:{secret}`: invalid PEM: {error}"))?;
        roots
            .add(certificate)
            .map_err(|error| format!("`ca=secret:{secret}`: {error}"))?;
    }
    if roots.is_empty() {
        Err(format!(
            "`ca=secret:{secret}`: the secret contains no certificate"
        ))
    } else {
        Ok(roots)
    }
}

/// Reads the system's authorities; certificates that cannot be parsed are skipped.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Errors of single files are ignored: the rest of the system's store is still usable.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn server_name(host: &EgressHost) -> Result<ServerName<'static>, String> {
    match host {
        EgressHost::Name(name) => {
            ServerName::try_from(name.clone()).map_err(|error| format!("{name}: {error}"))
        }
        EgressHost::V4(address) => Ok(ServerName::from(std::net::IpAddr::V4(*address))),
        EgressHost::V6(address) => Ok(ServerName::from(std::net::IpAddr::V6(*address))),
        EgressHost::Below(name) => Err(format!(
            "*.{name}: cannot verify a certificate for a wildcard name"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use super::*;
    use crate::destination::PoolKey;
    use crate::pool::LeaseGuard;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// Returns the error of TLS to a server that answers the first bytes with `answer`.
    async fn error_from_server(answer: &'static [u8]) -> String {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut peer, _) = server.accept().await.unwrap();
        let egress: nearpath_types::EgressSpec = format!("{address} protocol=tcp tls=originate")
            .parse()
            .unwrap();
        let to = EgressDestination {
            wildcard: None,
            key: PoolKey {
                owner: "f.ns".into(),
                host_port: egress.host_port(),
                identity: String::new(),
                epoch: 1,
            },
            egress,
            visible_ip: address.ip(),
            secrets: BTreeMap::new(),
        };
        let lease = ConnectionLease {
            stream,
            guard: LeaseGuard::on_drop(|| ()),
        };
        let adapters = AdapterRegistry::default();
        let answered = async {
            let _ = peer.read(&mut [0; 4_096]).await.unwrap();
            peer.write_all(answer).await.unwrap();
            drop(peer);
        };
        let (wrapped, ()) = tokio::join!(wrap_lease(lease, &to, &adapters), answered);
        wrapped.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_server_without_tls_is_told_from_one_that_closes() {
        let plain = error_from_server(b"-ERR unknown command\r\n").await;
        assert!(plain.contains("something else than TLS"), "{plain}");
        let closed = error_from_server(b"").await;
        assert!(closed.contains("closed the connection"), "{closed}");
    }
}
