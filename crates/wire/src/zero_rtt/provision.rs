//! Provision of a worker: its credentials, its trust, and the sessions that were minted for it.
//!
//! The node writes it to a descriptor (`NEARPATH_IDENTITY_FD`), at the start and whenever a part
//! changes: new sessions, a new certificate, other callers, revocations. The provision holds a
//! private key: it is never written to disk and does not leave the node. It is the first kind of
//! frame of `contract/identity.md`: a length of four bytes (little-endian), then a version and
//! postcard.

use std::fmt;
use std::time::{Duration, SystemTime};

use nearpath_types::direct::ForeignAuthority;
use nearpath_types::{FunctionId, SpiffeId};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::{SessionEntry, TokenKey};
use crate::identity::{Credentials, Trust};

// Checked before decoding: postcard has no field names, so another layout could decode to nonsense.
const PROVISION_VERSION: u8 = 1;

/// The parts that a node provisions. See the module documentation.
#[derive(Clone, PartialEq, Eq)]
pub struct Provision {
    /// Certificate and key of the worker.
    pub credentials: Credentials,
    /// Certificates of the trusted authorities.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Functions that may call the worker, beside gateways.
    pub callers: Vec<FunctionId>,
    /// Names of incarnations whose certificates were revoked.
    pub revoked: Vec<String>,
    /// Authorities of other nodes, for direct calls between machines.
    pub foreign: Vec<ForeignAuthority>,
    /// Key of the worker's address tokens.
    pub token_key: TokenKey,
    /// Sessions that were minted for this incarnation since the last frame.
    pub sessions: Vec<SessionEntry>,
}

/// Reasons why a frame cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The frame is malformed.
    #[error("malformed provision: {0}")]
    InvalidFrame(#[from] postcard::Error),
    /// Another version wrote the frame.
    #[error(
        "unsupported provision version {0}, expected version 1: install node and watchdog of the same release"
    )]
    Version(u8),
    /// The frame's SPIFFE ID is invalid.
    #[error("invalid identity in the provision: {0}")]
    Identity(#[from] nearpath_types::spiffe::InvalidSpiffeId),
}

/// A provision as postcard encodes it.
#[derive(Serialize, Deserialize)]
struct ProvisionFrame {
    id: String,
    name: String,
    chain: Vec<Vec<u8>>,
    private_key: Vec<u8>,
    not_after: u64,
    authorities: Vec<Vec<u8>>,
    callers: Vec<FunctionId>,
    revoked: Vec<String>,
    foreign: Vec<ForeignAuthority>,
    key: [u8; 32],
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Provision {
    /// Encodes one frame, its length included.
    pub fn encode(&self) -> Vec<u8> {
        let der = |certificates: &[CertificateDer<'_>]| {
            certificates
                .iter()
                .map(|certificate| certificate.to_vec())
                .collect()
        };
        let Credentials {
            id,
            name,
            chain,
            key,
            not_after,
        } = &self.credentials;
        let frame = ProvisionFrame {
            id: id.to_string(),
            name: name.clone(),
            chain: der(chain),
            private_key: key.clone(),
            not_after: not_after
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
            authorities: der(&self.authorities),
            callers: self.callers.clone(),
            revoked: self.revoked.clone(),
            foreign: self.foreign.clone(),
            key: self.token_key.0,
            entries: self
                .sessions
                .iter()
                .map(|entry| (entry.ticket.clone(), entry.session.clone()))
                .collect(),
        };
        // Space for the length, which is known only after encoding.
        let first = vec![0, 0, 0, 0, PROVISION_VERSION];
        let mut bytes = postcard::to_extend(&frame, first).expect("all of a frame can be written");
        let length = u32::try_from(bytes.len() - 4).expect("a provision is far below 4 GiB");
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Decodes a frame, its length excluded.
    ///
    /// # Errors
    /// See [`ProvisionError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProvisionError> {
        let (version, bytes) = bytes
            .split_first()
            .ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        if *version != PROVISION_VERSION {
            return Err(ProvisionError::Version(*version));
        }
        let frame: ProvisionFrame = postcard::from_bytes(bytes)?;
        let der = |many: Vec<Vec<u8>>| many.into_iter().map(CertificateDer::from).collect();
        let id: SpiffeId = frame.id.parse()?;
        let not_after =
            SystemTime::UNIX_EPOCH + Duration::from_secs(frame.not_after.min(u64::from(u32::MAX)));
        Ok(Self {
            credentials: Credentials {
                id,
                name: frame.name,
                chain: der(frame.chain),
                key: frame.private_key,
                not_after,
            },
            authorities: der(frame.authorities),
            callers: frame.callers,
            revoked: frame.revoked,
            foreign: frame.foreign,
            token_key: TokenKey(frame.key),
            sessions: frame
                .entries
                .into_iter()
                .map(|(ticket, session)| SessionEntry { ticket, session })
                .collect(),
        })
    }

    /// Trust of the worker in its callers.
    ///
    /// # Errors
    /// When a certificate among the authorities cannot be an authority's.
    pub fn worker_trust(&self) -> Result<Trust, rustls::Error> {
        Ok(self
            .caller_trust()?
            .with_callers(self.callers.iter().cloned().collect()))
    }

    /// Trust of the instance in workers that it calls: every instance with a valid certificate. The
    /// node tells which name it calls.
    ///
    /// # Errors
    /// When a certificate among the authorities cannot be an authority's.
    pub fn caller_trust(&self) -> Result<Trust, rustls::Error> {
        let trust = Trust::new(&self.credentials.id.trust_domain, &self.authorities)?;
        let trust = trust.with_revoked(self.revoked.iter().cloned().collect());
        match self.foreign.is_empty() {
            true => Ok(trust),
            false => trust.with_foreign(&self.foreign),
        }
    }

    /// Returns whether both trust the same workers, by the same authorities.
    pub fn has_same_roots(&self, other: &Self) -> bool {
        let roots = |provision: &Self| -> Vec<(String, Vec<u8>)> {
            let foreign = provision.foreign.iter();
            let root = |one: &ForeignAuthority| (one.trust_domain.clone(), one.certificate.clone());
            foreign.map(root).collect()
        };
        self.authorities == other.authorities && roots(self) == roots(other)
    }
}

impl fmt::Debug for Provision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Provision({:?}, {} sessions)",
            self.credentials,
            self.sessions.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::InstanceId;
    use proptest::prelude::*;

    fn provision(entries: Vec<(Vec<u8>, Vec<u8>)>) -> Provision {
        let function: FunctionId = "echo".parse().unwrap();
        let id = SpiffeId::for_instance("here", function.clone(), InstanceId(7));
        let not_after = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let chain = vec![CertificateDer::from(vec![1, 2])];
        Provision {
            credentials: Credentials {
                id,
                name: "i7".into(),
                chain: chain.clone(),
                key: vec![3],
                not_after,
            },
            authorities: chain,
            callers: vec![function],
            revoked: vec!["i6".into()],
            foreign: vec![ForeignAuthority {
                trust_domain: "b".into(),
                certificate: vec![4],
                callers: [("i1.b".into(), "other".parse().unwrap())].into(),
            }],
            token_key: TokenKey([9; 32]),
            sessions: entries
                .into_iter()
                .map(|(ticket, session)| SessionEntry { ticket, session })
                .collect(),
        }
    }

    proptest! {
        #[test]
        fn a_provision_is_read_as_written(entries: Vec<(Vec<u8>, Vec<u8>)>) {
            let wanted = provision(entries);
            let bytes = wanted.encode();
            prop_assert_eq!(bytes.len() - 4, u32::from_le_bytes(*bytes.first_chunk().unwrap()) as usize);
            prop_assert_eq!(Provision::decode(&bytes[4..]).unwrap(), wanted);
        }

        #[test]
        fn any_bytes_are_read_without_harm(mut bytes: Vec<u8>) {
            let _ = Provision::decode(&bytes);
            bytes.insert(0, PROVISION_VERSION);
            let _ = Provision::decode(&bytes);
        }
    }

    #[test]
    fn another_version_is_named() {
        assert!(
            Provision::decode(&[2])
                .unwrap_err()
                .to_string()
                .contains("version 2")
        );
    }

    #[test]
    fn debug_output_hides_secrets() {
        let text = format!("{:?}", provision(vec![(vec![77, 77], vec![78, 78])]));
        assert!(!text.contains("77") && !text.contains('9'), "{text}");
    }
}
