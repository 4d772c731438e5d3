//! Packets of the connection phase
//! (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_connection_phase.html>).
//!
//! The server sends a greeting, the client answers with its login, and both continue until the
//! server sends OK or an error.

use ring::digest::{self, Algorithm};

use super::frame::PayloadReader;

/// Capability flags of clients and servers.
pub mod capability {
    /// The response names a database.
    pub const CONNECT_WITH_DB: u32 = 1 << 3;
    /// Compression: removed.
    pub const COMPRESS: u32 = 1 << 5;
    /// The protocol since version 4.1: required.
    pub const PROTOCOL_41: u32 = 1 << 9;
    /// TLS: removed between function and node.
    pub const SSL: u32 = 1 << 11;
    /// The proof of the password has a length.
    pub const SECURE_CONNECTION: u32 = 1 << 15;
    /// Authentication methods have names.
    pub const PLUGIN_AUTH: u32 = 1 << 19;
    /// Attributes of the client program: removed, because they would be another client's.
    pub const CONNECT_ATTRS: u32 = 1 << 20;
    /// The proof's length is a length-encoded integer.
    pub const LENENC_AUTH_DATA: u32 = 1 << 21;
    /// Rows end with OK instead of EOF.
    pub const DEPRECATE_EOF: u32 = 1 << 24;
    /// Flags that pass through. An unknown flag could change the framing of replies.
    pub const SUPPORTED: u32 = 0x01ff_ffff & !(COMPRESS | SSL | CONNECT_ATTRS);
}

/// The first packet of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MysqlGreeting {
    /// Version of the server.
    pub version: Vec<u8>,
    /// Capabilities of the server.
    pub capabilities: u32,
    /// Character set of the server.
    pub charset: u8,
    /// Salt of the proofs.
    pub salt: Vec<u8>,
    /// Plugin by which the server wants the password proven.
    pub plugin: Vec<u8>,
}

/// A client's response to the greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeResponse {
    /// Capabilities of the client.
    pub capabilities: u32,
    /// Character set of the client.
    pub charset: u8,
    /// User of the client.
    pub user: Vec<u8>,
    /// Proof that the client knows the password.
    pub proof: Vec<u8>,
    /// Database of the client; empty: none.
    pub db: Vec<u8>,
    /// Plugin that made the proof.
    pub plugin: Vec<u8>,
}

impl MysqlGreeting {
    /// Parses a payload. `None`: it is not a greeting of version 10.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = PayloadReader(payload);
        if reader.read_byte()? != 10 {
            return None;
        }
        let version = reader.read_text()?.to_vec();
        // The connection id is skipped: it names one backend, and clients change backends.
        reader.read_bytes(4)?;
        let mut salt = reader.read_bytes(8)?.to_vec();
        reader.read_bytes(1)?;
        let low = reader.read_number(2)?;
        let charset = reader.read_byte()?;
        reader.read_bytes(2)?;
        let capabilities = u32::try_from(low | reader.read_number(2)? << 16).ok()?;
        let length = usize::from(reader.read_byte()?);
        reader.read_bytes(10)?;
        // The protocol defines max(13, length - 8) bytes; `min` guards against a short packet.
        let rest = reader.read_bytes(length.saturating_sub(8).max(13).min(reader.0.len()))?;
        salt.extend_from_slice(rest.strip_suffix(&[0]).unwrap_or(rest));
        let plugin = reader.read_text().unwrap_or(reader.0).to_vec();
        Some(Self {
            version,
            capabilities,
            charset,
            salt,
            plugin,
        })
    }

    /// Encodes the greeting for a client of the pool, with a new `salt` and without unsupported
    /// flags.
    pub fn encode(&self, salt: &[u8; 20]) -> Vec<u8> {
        let capabilities = (self.capabilities & capability::SUPPORTED | 1).to_le_bytes();
        let mut payload = vec![10];
        payload.extend_from_slice(&self.version);
        payload.extend_from_slice(&[0, 1, 0, 0, 0]);
        payload.extend_from_slice(&salt[..8]);
        payload.extend_from_slice(&[
            0,
            capabilities[0],
            capabilities[1],
            self.charset,
            2,
            0,
            capabilities[2],
            capabilities[3],
            21,
        ]);
        payload.extend_from_slice(&[0; 10]);
        payload.extend_from_slice(&salt[8..]);
        payload.push(0);
        payload.extend_from_slice(&self.plugin);
        payload.push(0);
        payload
    }
}

impl HandshakeResponse {
    /// Parses a payload. `None`: it is not a response of protocol 4.1.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = PayloadReader(payload);
        let capabilities = u32::try_from(reader.read_number(4)?).ok()?;
        reader.read_bytes(4)?;
        let charset = reader.read_byte()?;
        reader.read_bytes(23)?;
        if capabilities & capability::PROTOCOL_41 == 0 {
            return None;
        }
        let user = reader.read_text()?.to_vec();
        // The newest capability of the client decides the encoding of the proof.
        let proof = match capabilities {
            _ if capabilities & capability::LENENC_AUTH_DATA != 0 => {
                let length = usize::try_from(reader.read_length()?).ok()?;
                reader.read_bytes(length)?
            }
            _ if capabilities & capability::SECURE_CONNECTION != 0 => {
                let length = usize::from(reader.read_byte()?);
                reader.read_bytes(length)?
            }
            _ => reader.read_text()?,
        };
        let proof = proof.to_vec();
        let mut named = |flag| {
            if capabilities & flag == 0 {
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
            capabilities,
            charset,
            user,
            proof,
            db,
            plugin,
        })
    }

    /// Returns the capabilities of the client's connection to the server.
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

    /// Encodes the SSLRequest that precedes the response.
    pub fn encode_tls_request(&self) -> Vec<u8> {
        self.encode_head(
            self.server_capabilities() & !capability::LENENC_AUTH_DATA | capability::SSL,
        )
    }

    /// Encodes the response.
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

    fn encode_head(&self, capabilities: u32) -> Vec<u8> {
        let mut payload = capabilities.to_le_bytes().to_vec();
        // The largest packet: 16 MiB, little-endian.
        payload.extend_from_slice(&[0, 0, 0, 1, self.charset]);
        payload.extend_from_slice(&[0; 23]);
        payload
    }

    /// Encodes the command that makes a connection this client's.
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

/// Proves a password. `None`: the plugin is not supported.
pub fn prove_password(plugin: &[u8], password: &[u8], salt: &[u8]) -> Option<Vec<u8>> {
    // Some servers append a zero byte to the salt.
    let salt = salt.get(..20).unwrap_or(salt);
    match plugin {
        // An empty password is proven by an empty proof, whatever the plugin.
        _ if password.is_empty() => Some(Vec::new()),
        b"mysql_native_password" | b"" => {
            // The plugin is defined with SHA-1. It protects nothing here that the protocol does not
            // already expose.
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

/// OK packet outside a transaction: no rows, no insert id, status `AUTOCOMMIT`.
pub const OK_PAYLOAD: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

/// Encodes an error. Before the greeting an error has no SQL state.
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
        let capabilities = capability::SUPPORTED & !capability::LENENC_AUTH_DATA;
        let answer = HandshakeResponse {
            capabilities,
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
            capabilities: capabilities & !capability::CONNECT_WITH_DB,
            ..answer
        };
        assert_eq!(HandshakeResponse::parse(&none.encode(false)).unwrap(), none);
    }

    #[test]
    fn a_proof_matches_the_server_computation() {
        // From the server's side: it stores SHA1(SHA1(password)), and recovers SHA1(password) from
        // the proof.
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
