//! TLS for clients in instances: the node answers in the name of a destination.
//!
//! The authority lives as long as the node, and its key stays in memory. Instances end with the
//! node, so no instance outlives the authority that it trusts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::{Authority, IssueError};
use nearpath_connpool::destination::EgressDestination;
use nearpath_dbproxy::client_stream::TlsAcceptorSource;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

/// Lifetime of the authority and its certificates: longer than any node runs.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);
/// Maximum destinations whose acceptors are kept. Beyond it all are created anew.
const MAX_ACCEPTORS: usize = 1_024;
/// ALPN name that clients of PostgreSQL offer (its manual, "SSL Session Encryption").
const POSTGRES_ALPN: &[u8] = b"postgresql";

/// Creates the authority of a node's destinations.
pub(crate) fn create_authority() -> io::Result<Arc<Authority>> {
    let authority = Authority::new("destinations", SystemTime::now(), LIFETIME);
    Ok(Arc::new(authority.map_err(io::Error::other)?))
}

/// Returns the acceptors of all destinations. Each is created at its first use.
pub(crate) fn acceptor_source(authority: Arc<Authority>) -> TlsAcceptorSource {
    let acceptors = RefCell::new(HashMap::new());
    Rc::new(move |to| {
        let mut acceptors = acceptors.borrow_mut();
        let names = names_of(to);
        if let Some(known) = acceptors.get(&names) {
            return Ok(TlsAcceptor::clone(known));
        }
        // Names below wildcards have no end, so the table must have one.
        if acceptors.len() >= MAX_ACCEPTORS {
            acceptors.clear();
        }
        let acceptor = create_acceptor(&authority, names.clone()).map_err(io::Error::other)?;
        acceptors.insert(names, acceptor.clone());
        Ok(acceptor)
    })
}

/// Returns the names by which an instance may know a destination.
fn names_of(to: &EgressDestination) -> Vec<String> {
    vec![to.egress.host.to_string(), to.visible_ip.to_string()]
}

#[derive(Debug, thiserror::Error)]
enum AcceptorError {
    #[error("cannot issue the certificate of the destination: {0}")]
    Issue(#[from] IssueError),
    #[error("cannot use the certificate of the destination: {0}")]
    Tls(#[from] rustls::Error),
}

fn create_acceptor(
    authority: &Authority,
    names: Vec<String>,
) -> Result<TlsAcceptor, AcceptorError> {
    let issued = authority.issue_server(names, SystemTime::now(), LIFETIME)?;
    // Named explicitly, so that the choice does not depend on the features of other crates in the
    // build.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![issued.certificate], issued.key)?;
    config.alpn_protocols = vec![POSTGRES_ALPN.to_vec()];
    // Drivers of databases do not resume sessions.
    config.send_tls13_tickets = 0;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
