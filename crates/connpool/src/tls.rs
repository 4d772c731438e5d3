//! TLS that the node speaks in a function's place (`tls=originate`): the function's plaintext goes over it, sessions are resumed, and the destination's
//! name is checked against the authorities of the system, or of a secret of the function.
//!
//! Adapters put it on the connections that the pool gives them ([`wrap_lease`]).

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

/// How the node speaks TLS with one destination; sessions to resume are kept in it.
struct TlsClientState(Result<(TlsConnector, ServerName<'static>), String>);

impl AdapterState for TlsClientState {
    fn for_destination(to: &EgressDestination) -> Self {
        Self(
            build_connector(to)
                .and_then(|connector| Ok((connector, server_name(&to.egress.host)?))),
        )
    }

    fn idle_connections(&self) -> Option<&dyn IdleConnections> {
        None
    }
}

/// What the function's bytes go through: the connection as it is, or TLS on it where the destination asks for that.
///
/// # Errors
/// When the handshake fails: the certificate does not fit, or the destination speaks no TLS.
pub async fn wrap_lease(
    lease: ConnectionLease,
    to: &EgressDestination,
    rooms: &AdapterRegistry,
) -> Result<UpstreamSocket, NoConnection> {
    if to.egress.tls == EgressTls::Pass {
        return Ok(UpstreamSocket::from_lease(lease));
    }
    let failed = |error| NoConnection::Refused {
        to: to.key.host_port.clone(),
        error,
    };
    let speaker = rooms.state_of::<TlsClientState>(to);
    let (connector, name) = speaker
        .0
        .as_ref()
        .map_err(|why| failed(io::Error::other(why.clone())))?;
    let stream = connector
        .connect(name.clone(), lease.stream)
        .await
        .map_err(failed)?;
    Ok(UpstreamSocket::from_tls(stream, lease.guard))
}

fn build_connector(to: &EgressDestination) -> Result<TlsConnector, String> {
    let EgressTls::Originate { ca } = &to.egress.tls else {
        return Err("it speaks no TLS".into());
    };
    let roots = match ca {
        Some(secret) => roots_from_secret(to, secret)?,
        None => system_roots(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Without it a server that speaks HTTP/2, too, may choose that.
    if to.egress.protocol == nearpath_types::egress::EgressProtocol::Http {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Authorities of a secret.
fn roots_from_secret(to: &EgressDestination, secret: &str) -> Result<RootCertStore, String> {
    let pem = to
        .secrets
        .get(secret)
        .ok_or_else(|| format!("`ca=secret:{secret}`: the function has no such secret"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|error| format!("`ca=secret:{secret}` is no PEM: {error}"))?;
        roots
            .add(certificate)
            .map_err(|error| format!("`ca=secret:{secret}`: {error}"))?;
    }
    if roots.is_empty() {
        Err(format!("`ca=secret:{secret}` holds no certificate"))
    } else {
        Ok(roots)
    }
}

/// Authorities of the machine; those that are not understood are left out.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
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
            "*.{name}: no certificate can be checked without a whole name"
        )),
    }
}
