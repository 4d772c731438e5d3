//! How a connection begins (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_connection_phase.html>): the server greets, the client
//! answers with who it is, and they go on until the server says OK or an error.

use ring::digest::{self, Algorithm};

use super::frame::PayloadReader;

/// Capabilities that a client or a server names.
pub mod capability {
    /// The answer names a database.
    pub const CONNECT_WITH_DB: u32 = 1 << 3;
    /// Compression: cut.
    pub const COMPRESS: u32 = 1 << 5;
    /// The protocol since version 4.1: required.
    pub const PROTOCOL_41: u32 = 1 << 9;
    /// TLS: cut, between function and node.
    pub const SSL: u32 = 1 << 11;
    /// The proof of the password has a length.
    pub const SECURE_CONNECTION: u32 = 1 << 15;
    /// Ways to prove it have names.
    pub const PLUGIN_AUTH: u32 = 1 << 19;
    /// What is told about the program: cut, it would be another client's.
    pub const CONNECT_ATTRS: u32 = 1 << 20;
    /// The proof's length is of any size.
    pub const LENENC_AUTH_DATA: u32 = 1 << 21;
    /// Rows end with OK instead of EOF.
    pub const DEPRECATE_EOF: u32 = 1 << 24;
    /// What goes through. What is not named here could change how replies are framed.
    pub const SUPPORTED: u32 = 0x01ff_ffff & !(COMPRESS | SSL | CONNECT_ATTRS);
}

/// The first packet of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MysqlGreeting {
    /// The server's version.
    pub version: Vec<u8>,
    /// What it can do.
    pub capabilities: u32,
    /// Its character set.
    pub charset: u8,
    /// What proofs are made with.
    pub salt: Vec<u8>,
    /// How it wants the password proved.
    pub plugin: Vec<u8>,
}

/// What a client answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeResponse {
    /// What it can do.
    pub capabilities: u32,
    /// Its character set.
    pub charset: u8,
    /// Its user.
    pub user: Vec<u8>,
    /// The proof that it knows the password.
    pub proof: Vec<u8>,
    /// Its database; empty: none.
    pub db: Vec<u8>,
    /// How it proves.
    pub plugin: Vec<u8>,
}

impl MysqlGreeting {
    /// Of a payload; `NoConnection`: it is no greeting of version 10.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = PayloadReader(payload);
        if reader.read_byte()? != 10 {
            return None;
        }
        let version = reader.read_text()?.to_vec();
        reader.read_bytes(4)?;
        let mut salt = reader.read_bytes(8)?.to_vec();
        reader.read_bytes(1)?;
        let low = reader.read_number(2)?;
        let charset = reader.read_byte()?;
        reader.read_bytes(2)?;
        let can = u32::try_from(low | reader.read_number(2)? << 16).ok()?;
        let length = usize::from(reader.read_byte()?);
        reader.read_bytes(10)?;
        let rest = reader.read_bytes(length.saturating_sub(8).max(13).min(reader.0.len()))?;
        salt.extend_from_slice(rest.strip_suffix(&[0]).unwrap_or(rest));
        let plugin = reader.read_text().unwrap_or(reader.0).to_vec();
        Some(Self {
            version,
            capabilities: can,
            charset,
            salt,
            plugin,
        })
    }

    /// The same for a client of the pool: what is not understood is not offered, and `salt` is new.
    pub fn encode(&self, salt: &[u8; 20]) -> Vec<u8> {
        let can = (self.capabilities & capability::SUPPORTED | 1).to_le_bytes();
        let mut payload = vec![10];
        payload.extend_from_slice(&self.version);
        payload.extend_from_slice(&[0, 1, 0, 0, 0]);
        payload.extend_from_slice(&salt[..8]);
        payload.extend_from_slice(&[0, can[0], can[1], self.charset, 2, 0, can[2], can[3], 21]);
        payload.extend_from_slice(&[0; 10]);
        payload.extend_from_slice(&salt[8..]);
        payload.push(0);
        payload.extend_from_slice(&self.plugin);
        payload.push(0);
        payload
    }
}

impl HandshakeResponse {
    /// Of a payload; `NoConnection`: it is none of protocol 4.1.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = PayloadReader(payload);
        let can = u32::try_from(reader.read_number(4)?).ok()?;
        reader.read_bytes(4)?;
        let charset = reader.read_byte()?;
        reader.read_bytes(23)?;
        if can & capability::PROTOCOL_41 == 0 {
            return None;
        }
        let user = reader.read_text()?.to_vec();
        let proof = match can {
            _ if can & capability::LENENC_AUTH_DATA != 0 => {
                let length = usize::try_from(reader.read_length()?).ok()?;
                reader.read_bytes(length)?
            }
            _ if can & capability::SECURE_CONNECTION != 0 => {
                let length = usize::from(reader.read_byte()?);
                reader.read_bytes(length)?
            }
            _ => reader.read_text()?,
        };
        let proof = proof.to_vec();
        let mut named = |flag| {
            if can & flag == 0 {
                Vec::new()
            } else {
                reader.read_text().unwrap_or_default().to_vec()
            }
        };
        let (db, plugin) = (
            named(capability::CONNECT_WITH_DB),
            named(capability::PLUGIN_AUTH),
        );
        Some(Self {
            capabilities: can,
            charset,
            user,
            proof,
            db,
            plugin,
        })
    }

    /// The capabilities that its connection to the server has.
    fn server_capabilities(&self) -> u32 {
        let db = if self.db.is_empty() {
            0
        } else {
            capability::CONNECT_WITH_DB
        };
        self.capabilities & capability::SUPPORTED & !capability::CONNECT_WITH_DB
            | capability::PLUGIN_AUTH
            | capability::SECURE_CONNECTION
            | capability::PROTOCOL_41
            | db
    }

    /// The request for TLS that comes before it.
    pub fn encode_tls_request(&self) -> Vec<u8> {
        self.encode_head(
            self.server_capabilities() & !capability::LENENC_AUTH_DATA | capability::SSL,
        )
    }

    /// Its payload.
    pub fn encode(&self, tls: bool) -> Vec<u8> {
        let mut payload = self.encode_head(
            self.server_capabilities() & !capability::LENENC_AUTH_DATA
                | if tls { capability::SSL } else { 0 },
        );
        payload.extend_from_slice(&self.user);
        payload.extend_from_slice(&[0, u8::try_from(self.proof.len()).unwrap_or_default()]);
        payload.extend_from_slice(&self.proof);
        if !self.db.is_empty() {
            payload.extend_from_slice(&self.db);
            payload.push(0);
        }
        payload.extend_from_slice(&self.plugin);
        payload.push(0);
        payload
    }

    fn encode_head(&self, can: u32) -> Vec<u8> {
        let mut payload = can.to_le_bytes().to_vec();
        payload.extend_from_slice(&[0, 0, 0, 1, self.charset]);
        payload.extend_from_slice(&[0; 23]);
        payload
    }

    /// The command that makes a connection this client's.
    pub fn encode_change_user(&self) -> Vec<u8> {
        let mut payload = vec![0x11];
        payload.extend_from_slice(&self.user);
        payload.extend_from_slice(&[0, u8::try_from(self.proof.len()).unwrap_or_default()]);
        payload.extend_from_slice(&self.proof);
        payload.extend_from_slice(&self.db);
        payload.extend_from_slice(&[0, self.charset, 0]);
        payload.extend_from_slice(&self.plugin);
        payload.push(0);
        payload
    }
}

/// Proves a password; `NoConnection`: in a way that is not known here.
pub fn prove_password(plugin: &[u8], password: &[u8], salt: &[u8]) -> Option<Vec<u8>> {
    let salt = salt.get(..20).unwrap_or(salt);
    match plugin {
        _ if password.is_empty() => Some(Vec::new()),
        b"mysql_native_password" | b"" => {
            let algorithm = &digest::SHA1_FOR_LEGACY_USE_ONLY;
            let once = digest_parts(algorithm, &[password]);
            let twice = digest_parts(algorithm, &[&once]);
            Some(xor_bytes(&once, &digest_parts(algorithm, &[salt, &twice])))
        }
        b"caching_sha2_password" => {
            let once = digest_parts(&digest::SHA256, &[password]);
            let twice = digest_parts(&digest::SHA256, &[&once]);
            Some(xor_bytes(
                &once,
                &digest_parts(&digest::SHA256, &[&twice, salt]),
            ))
        }
        _ => None,
    }
}

fn digest_parts(algorithm: &'static Algorithm, parts: &[&[u8]]) -> Vec<u8> {
    let mut context = digest::Context::new(algorithm);
    parts.iter().for_each(|part| context.update(part));
    context.finish().as_ref().to_vec()
}

fn xor_bytes(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter()
        .zip(other)
        .map(|(one, other)| one ^ other)
        .collect()
}

/// OK, outside of a transaction.
pub const OK_PAYLOAD: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

/// An error; before the greeting it has no state.
pub fn encode_error(number: u16, state: Option<&str>, text: &str) -> Vec<u8> {
    let mut payload = vec![0xff];
    payload.extend_from_slice(&number.to_le_bytes());
    if let Some(state) = state {
        payload.push(b'#');
        payload.extend_from_slice(state.as_bytes());
    }
    payload.extend_from_slice(text.as_bytes());
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_round_trips() {
        let greeting = MysqlGreeting {
            version: b"8".to_vec(),
            capabilities: capability::SUPPORTED | capability::SSL | capability::COMPRESS,
            charset: 45,
            salt: vec![7; 20],
            plugin: b"p".to_vec(),
        };
        let read = MysqlGreeting::parse(&greeting.encode(&[7; 20])).unwrap();
        assert_eq!(
            read,
            MysqlGreeting {
                capabilities: capability::SUPPORTED | 1,
                ..greeting
            }
        );
        assert_eq!(MysqlGreeting::parse(b"\x09old"), None);
    }

    #[test]
    fn a_handshake_response_round_trips() {
        let can = capability::SUPPORTED & !capability::LENENC_AUTH_DATA;
        let answer = HandshakeResponse {
            capabilities: can,
            charset: 45,
            user: b"me".to_vec(),
            proof: vec![1; 20],
            db: b"d".to_vec(),
            plugin: b"p".to_vec(),
        };
        assert_eq!(
            HandshakeResponse::parse(&answer.encode(false)).unwrap(),
            answer
        );
        let none = HandshakeResponse {
            db: Vec::new(),
            capabilities: can & !capability::CONNECT_WITH_DB,
            ..answer
        };
        assert_eq!(HandshakeResponse::parse(&none.encode(false)).unwrap(), none);
    }

    #[test]
    fn a_proof_matches_the_server_computation() {
        // From a server's own side: it keeps SHA1(SHA1(password)), and gets SHA1(password) back from the proof.
        let (salt, algorithm) = ([3; 20], &digest::SHA1_FOR_LEGACY_USE_ONLY);
        let proof = prove_password(b"mysql_native_password", b"secret", &salt).unwrap();
        let kept = digest_parts(algorithm, &[&digest_parts(algorithm, &[b"secret"])]);
        assert_eq!(
            digest_parts(
                algorithm,
                &[&xor_bytes(
                    &proof,
                    &digest_parts(algorithm, &[&salt, &kept])
                )]
            ),
            kept
        );
        let (proof, algorithm) = (
            prove_password(b"caching_sha2_password", b"secret", &salt).unwrap(),
            &digest::SHA256,
        );
        let kept = digest_parts(algorithm, &[&digest_parts(algorithm, &[b"secret"])]);
        assert_eq!(
            digest_parts(
                algorithm,
                &[&xor_bytes(
                    &proof,
                    &digest_parts(algorithm, &[&kept, &salt])
                )]
            ),
            kept
        );
        assert_eq!(prove_password(b"client_ed25519", b"secret", &salt), None);
        assert_eq!(prove_password(b"anything", b"", &salt), Some(Vec::new()));
    }
}
