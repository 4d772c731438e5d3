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
        .map_err(failed)?;
    Ok(UpstreamSocket::from_tls(stream, lease.guard))
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
