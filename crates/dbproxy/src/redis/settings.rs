//! What a connection of Redis is for its client, as far as it can be made again on another one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::session_effect::Change;

/// Answers that are remembered at most, for one key.
const REMEMBERED: usize = 256;
/// Longest answer that is remembered.
pub const LONGEST: usize = 4096;

/// Settings of a connection that commands can make again. Two connections with equal ones serve each other's clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    auth: Option<(Option<Vec<u8>>, Vec<u8>)>,
    version: Option<u8>,
    db: u32,
    name: Vec<u8>,
    driver: Vec<u8>,
    driver_version: Vec<u8>,
}

/// Those who are told the same, in the same words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    auth: Option<(Option<Vec<u8>>, Vec<u8>)>,
    version: u8,
}

impl Reader {
    /// Bytes that it takes beside itself.
    pub fn size(&self) -> usize {
        self.auth.as_ref().map_or(0, |(user, password)| user.as_ref().map_or(0, Vec::len) + password.len())
    }
}

impl Identity {
    /// A new connection's that is in this database.
    pub fn within(db: u32) -> Self {
        Self { db, ..Self::default() }
    }

    /// Who reads, as far as it matters for what it is told.
    pub fn reader(&self) -> Reader {
        Reader { auth: self.auth.clone(), version: self.version.unwrap_or(2) }
    }

    /// The database that commands mean.
    pub fn db(&self) -> u32 {
        self.db
    }

    /// What it is when the server has agreed to `change`.
    pub fn after(&self, change: &Change) -> Self {
        let mut after = self.clone();
        match change.clone() {
            Change::Auth(user, password) => after.auth = Some((user, password)),
            Change::Select(db) => after.db = db,
            Change::Name(name) => after.name = name,
            Change::Library(name) => after.driver = name,
            Change::LibraryVersion(version) => after.driver_version = version,
            Change::Hello { version, auth, name } => {
                after.version = version.or(after.version);
                after.auth = auth.map(|(user, password)| (Some(user), password)).or(after.auth);
                after.name = name.unwrap_or(after.name);
            }
        }
        after
    }

    /// The commands that make a connection this, which is new or was reset; `of` is what it was then: a reset forgets all but the library's name.
    pub fn commands(&self, of: Option<&Self>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        if let Some((user, password)) = &self.auth {
            all.push(authenticate(user.as_deref(), password));
        }
        if let Some(version) = self.version {
            all.push(command(&[b"HELLO", version.to_string().as_bytes()]));
        }
        if self.db != 0 {
            all.push(command(&[b"SELECT", self.db.to_string().as_bytes()]));
        }
        if !self.name.is_empty() {
            all.push(command(&[b"CLIENT", b"SETNAME", &self.name]));
        }
        let blank = Self::default();
        let of = of.unwrap_or(&blank);
        if self.driver != of.driver {
            all.push(command(&[b"CLIENT", b"SETINFO", b"LIB-NAME", &self.driver]));
        }
        if self.driver_version != of.driver_version {
            all.push(command(&[b"CLIENT", b"SETINFO", b"LIB-VER", &self.driver_version]));
        }
        all
    }
}

/// A command in the words of the protocol.
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Servers before version 6 know no users.
pub fn authenticate(user: Option<&[u8]>, password: &[u8]) -> Vec<u8> {
    match user {
        None | Some(b"default") => command(&[b"AUTH", password]),
        Some(user) => command(&[b"AUTH", user, password]),
    }
}

/// What the server answered when a connection was set up, so that the next one that is set up alike has its answer at once.
#[derive(Debug, Default)]
pub struct Known(HashMap<(Identity, Change), Answer>);

#[derive(Debug)]
struct Answer {
    reply: Vec<u8>,
    agreed: bool,
    at: Instant,
}

impl Known {
    /// The server answered `change` so. A refusal is remembered only of what servers before 7.2 do not know.
    pub fn learn(&mut self, of: &Identity, change: &Change, reply: &[u8], agreed: bool, now: Instant) {
        let harmless = matches!(change, Change::Library(_) | Change::LibraryVersion(_));
        if (!agreed && !harmless) || reply.len() > LONGEST {
            return;
        }
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        self.0.insert((of.clone(), change.clone()), Answer { reply: reply.to_vec(), agreed, at: now });
    }

    /// What it answered no longer than `age` ago, and what the connection is then.
    pub fn recall(&self, of: &Identity, change: &Change, now: Instant, age: Duration) -> Option<(&[u8], Identity)> {
        let answer = self.0.get(&(of.clone(), change.clone()))?;
        let fresh = now.saturating_duration_since(answer.at) < age;
        fresh.then(|| (&answer.reply[..], if answer.agreed { of.after(change) } else { of.clone() }))
    }

    /// The server is not what it was: it refused what it agreed to before, or was away.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_made_again_by_its_commands() {
        let changes = [
            Change::Hello { version: Some(3), auth: Some((b"u".to_vec(), b"p".to_vec())), name: Some(b"n".to_vec()) },
            Change::Select(2),
            Change::Library(b"lib".to_vec()),
        ];
        let identity = changes.iter().fold(Identity::default(), |identity, change| identity.after(change));
        let bytes = identity.commands(None).concat();
        let text = String::from_utf8(bytes).unwrap();
        let order: Vec<_> =
            ["AUTH", "HELLO", "SELECT", "SETNAME", "SETINFO"].iter().map(|word| text.find(word).unwrap()).collect();
        assert!(order.is_sorted(), "{text:?}");
        assert!(identity.commands(Some(&identity)).concat().windows(7).all(|part| part != b"SETINFO"));
        assert!(Identity::default().commands(Some(&identity)).concat().windows(7).any(|part| part == b"SETINFO"));
    }

    #[test]
    fn answers_are_remembered_for_a_while_and_refusals_are_not() {
        let (mut known, of, now) = (Known::default(), Identity::default(), Instant::now());
        let (select, minute) = (Change::Select(1), Duration::from_secs(60));
        known.learn(&of, &Change::Select(99), b"-ERR", false, now);
        assert!(known.recall(&of, &Change::Select(99), now, minute).is_none());
        known.learn(&of, &select, b"+OK\r\n", true, now);
        assert_eq!(known.recall(&of, &select, now, minute).unwrap().1, of.after(&select));
        assert!(known.recall(&of, &select, now + minute, minute).is_none());
        known.forget();
        assert!(known.recall(&of, &select, now, minute).is_none());
    }
}
