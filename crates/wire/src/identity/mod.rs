//! Identities: short-lived certificates with a SPIFFE ID, and the decision about a peer.
//!
//! An authority (`nearpath-ca`) signs. A node creates and keeps the keys of its workers
//! ([`CertificateRequest`]). Every end of a connection checks its peer with its [`Trust`], also
//! when a session is resumed: a session must not outlive its certificate, and rustls does not check
//! that certificate again.

mod credentials;
mod pem;
mod refusal_reason;
mod root;
mod trust;

pub use credentials::{
    CertificateRequest, CertificateRequestError, Credentials, IssuedCertificate,
};
pub use pem::{InvalidPem, encode_pem, parse_authority};
pub use refusal_reason::RefusalReason;
pub(crate) use root::system_time;
pub use root::{InvalidRoots, RootCertificate};
pub use trust::{PeerIdentity, PeerRefusal, Trust};
pub(crate) use trust::{parse_certificate, unix_seconds};
