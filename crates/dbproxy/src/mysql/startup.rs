//! How a connection begins (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_connection_phase.html>): the server greets, the client
//! answers with who it is, and they go on until the server says OK or an error.

use ring::digest::{self, Algorithm};

use super::frame::Reader;

/// Capabilities that a client or a server names.
pub mod can {
    /// The answer names a database.
    pub const DB: u32 = 1 << 3;
    /// Compression: cut.
    pub const COMPRESS: u32 = 1 << 5;
    /// The protocol since version 4.1: required.
    pub const PROTOCOL_41: u32 = 1 << 9;
    /// TLS: cut, between function and node.
    pub const SSL: u32 = 1 << 11;
    /// The proof of the password has a length.
    pub const SECURE: u32 = 1 << 15;
    /// Ways to prove it have names.
    pub const PLUGIN_AUTH: u32 = 1 << 19;
    /// What is told about the program: cut, it would be another client's.
    pub const ATTRIBUTES: u32 = 1 << 20;
    /// The proof's length is of any size.
    pub const LONG_PROOF: u32 = 1 << 21;
    /// Rows end with OK instead of EOF.
    pub const NO_EOF: u32 = 1 << 24;
    /// What goes through. What is not named here could change how replies are framed.
    pub const UNDERSTOOD: u32 = 0x01ff_ffff & !(COMPRESS | SSL | ATTRIBUTES);
}

/// The first packet of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The server's version.
    pub version: Vec<u8>,
    /// What it can do.
    pub can: u32,
    /// Its character set.
    pub charset: u8,
    /// What proofs are made with.
    pub salt: Vec<u8>,
    /// How it wants the password proved.
    pub plugin: Vec<u8>,
}

/// What a client answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What it can do.
    pub can: u32,
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

impl Greeting {
    /// Of a payload; `None`: it is no greeting of version 10.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        if reader.byte()? != 10 {
            return None;
        }
        let version = reader.text()?.to_vec();
        reader.bytes(4)?;
        let mut salt = reader.bytes(8)?.to_vec();
        reader.bytes(1)?;
        let low = reader.number(2)?;
        let charset = reader.byte()?;
        reader.bytes(2)?;
        let can = u32::try_from(low | reader.number(2)? << 16).ok()?;
        let length = usize::from(reader.byte()?);
        reader.bytes(10)?;
        let rest = reader.bytes(length.saturating_sub(8).max(13).min(reader.0.len()))?;
        salt.extend_from_slice(rest.strip_suffix(&[0]).unwrap_or(rest));
        let plugin = reader.text().unwrap_or(reader.0).to_vec();
        Some(Self { version, can, charset, salt, plugin })
    }

    /// The same for a client of the pool: what is not understood is not offered, and `salt` is new.
    pub fn write(&self, salt: &[u8; 20]) -> Vec<u8> {
        let can = (self.can & can::UNDERSTOOD | 1).to_le_bytes();
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

impl Answer {
    /// Of a payload; `None`: it is none of protocol 4.1.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let can = u32::try_from(reader.number(4)?).ok()?;
        reader.bytes(4)?;
        let charset = reader.byte()?;
        reader.bytes(23)?;
        if can & can::PROTOCOL_41 == 0 {
            return None;
        }
        let user = reader.text()?.to_vec();
        let proof = match can {
            _ if can & can::LONG_PROOF != 0 => {
                let length = usize::try_from(reader.length()?).ok()?;
                reader.bytes(length)?
            }
            _ if can & can::SECURE != 0 => {
                let length = usize::from(reader.byte()?);
                reader.bytes(length)?
            }
            _ => reader.text()?,
        };
        let proof = proof.to_vec();
        let mut named = |flag| if can & flag == 0 { Vec::new() } else { reader.text().unwrap_or_default().to_vec() };
        let (db, plugin) = (named(can::DB), named(can::PLUGIN_AUTH));
        Some(Self { can, charset, user, proof, db, plugin })
    }

    /// The capabilities that its connection to the server has.
    fn at_server(&self) -> u32 {
        let db = if self.db.is_empty() { 0 } else { can::DB };
        self.can & can::UNDERSTOOD & !can::DB | can::PLUGIN_AUTH | can::SECURE | can::PROTOCOL_41 | db
    }

    /// The request for TLS that comes before it.
    pub fn ask_for_tls(&self) -> Vec<u8> {
        self.head(self.at_server() & !can::LONG_PROOF | can::SSL)
    }

    /// Its payload.
    pub fn write(&self, tls: bool) -> Vec<u8> {
        let mut payload = self.head(self.at_server() & !can::LONG_PROOF | if tls { can::SSL } else { 0 });
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

    fn head(&self, can: u32) -> Vec<u8> {
        let mut payload = can.to_le_bytes().to_vec();
        payload.extend_from_slice(&[0, 0, 0, 1, self.charset]);
        payload.extend_from_slice(&[0; 23]);
        payload
    }

    /// The command that makes a connection this client's.
    pub fn change_user(&self) -> Vec<u8> {
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

/// Proves a password; `None`: in a way that is not known here.
pub fn prove(plugin: &[u8], password: &[u8], salt: &[u8]) -> Option<Vec<u8>> {
    let salt = salt.get(..20).unwrap_or(salt);
    match plugin {
        _ if password.is_empty() => Some(Vec::new()),
        b"mysql_native_password" | b"" => {
            let algorithm = &digest::SHA1_FOR_LEGACY_USE_ONLY;
            let once = hash(algorithm, &[password]);
            let twice = hash(algorithm, &[&once]);
            Some(xor(&once, &hash(algorithm, &[salt, &twice])))
        }
        b"caching_sha2_password" => {
            let once = hash(&digest::SHA256, &[password]);
            let twice = hash(&digest::SHA256, &[&once]);
            Some(xor(&once, &hash(&digest::SHA256, &[&twice, salt])))
        }
        _ => None,
    }
}

fn hash(algorithm: &'static Algorithm, parts: &[&[u8]]) -> Vec<u8> {
    let mut context = digest::Context::new(algorithm);
    parts.iter().for_each(|part| context.update(part));
    context.finish().as_ref().to_vec()
}

fn xor(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter().zip(other).map(|(one, other)| one ^ other).collect()
}

/// OK, outside of a transaction.
pub const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

/// An error; before the greeting it has no state.
pub fn error(number: u16, state: Option<&str>, text: &str) -> Vec<u8> {
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
    fn a_greeting_is_read_as_it_is_written() {
        let greeting = Greeting {
            version: b"8".to_vec(),
            can: can::UNDERSTOOD | can::SSL | can::COMPRESS,
            charset: 45,
            salt: vec![7; 20],
            plugin: b"p".to_vec(),
        };
        let read = Greeting::read(&greeting.write(&[7; 20])).unwrap();
        assert_eq!(read, Greeting { can: can::UNDERSTOOD | 1, ..greeting });
        assert_eq!(Greeting::read(b"\x09old"), None);
    }

    #[test]
    fn an_answer_is_read_as_it_is_written() {
        let can = can::UNDERSTOOD & !can::LONG_PROOF;
        let answer = Answer {
            can,
            charset: 45,
            user: b"me".to_vec(),
            proof: vec![1; 20],
            db: b"d".to_vec(),
            plugin: b"p".to_vec(),
        };
        assert_eq!(Answer::read(&answer.write(false)).unwrap(), answer);
        let none = Answer { db: Vec::new(), can: can & !can::DB, ..answer };
        assert_eq!(Answer::read(&none.write(false)).unwrap(), none);
    }

    #[test]
    fn a_proof_is_the_one_that_servers_compute() {
        // From a server's own side: it keeps SHA1(SHA1(password)), and gets SHA1(password) back from the proof.
        let (salt, algorithm) = ([3; 20], &digest::SHA1_FOR_LEGACY_USE_ONLY);
        let proof = prove(b"mysql_native_password", b"secret", &salt).unwrap();
        let kept = hash(algorithm, &[&hash(algorithm, &[b"secret"])]);
        assert_eq!(hash(algorithm, &[&xor(&proof, &hash(algorithm, &[&salt, &kept]))]), kept);
        let (proof, algorithm) = (prove(b"caching_sha2_password", b"secret", &salt).unwrap(), &digest::SHA256);
        let kept = hash(algorithm, &[&hash(algorithm, &[b"secret"])]);
        assert_eq!(hash(algorithm, &[&xor(&proof, &hash(algorithm, &[&kept, &salt]))]), kept);
        assert_eq!(prove(b"client_ed25519", b"secret", &salt), None);
        assert_eq!(prove(b"anything", b"", &salt), Some(Vec::new()));
    }
}
