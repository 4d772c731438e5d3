//! Who is at the other end of a connection: short-lived certificates that carry a SPIFFE ID, and the decision about a peer.
//!
//! An authority (`nearpath-ca`) signs; a node makes the keys of its parties and keeps them ([`CertificateRequest`]); every party decides
//! about every peer by its [`Trust`], also when a session is resumed: a session must not outlive the certificate that it began
//! with, and rustls does not look at that one again.

mod credentials;
mod pem;
mod trust;

pub use credentials::{
    CertificateRequest, CertificateRequestError, Credentials, IssuedCertificate,
};
pub use pem::{InvalidPem, encode_pem, parse_authority};
pub(crate) use trust::unix_seconds;
pub use trust::{PeerIdentity, PeerRefusal, Trust};
