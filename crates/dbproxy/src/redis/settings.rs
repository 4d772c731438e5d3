//! What a connection of Redis is for its client, as far as it can be made again on another one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::session_effect::SettingChange;

/// Answers that are remembered at most, for one key.
const MAX_KNOWN_REPLIES: usize = 256;
/// Longest answer that is remembered.
pub const MAX_SETTING_REPLY_BYTES: usize = 4096;

/// Settings of a connection that commands can make again. Two connections with equal ones serve each other's clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RedisIdentity {
    auth: Option<(Option<Vec<u8>>, Vec<u8>)>,
    version: Option<u8>,
    db: u32,
    name: Vec<u8>,
    library_name: Vec<u8>,
    library_version: Vec<u8>,
}

/// Those who are told the same, in the same words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderIdentity {
    auth: Option<(Option<Vec<u8>>, Vec<u8>)>,
    version: u8,
}

impl ReaderIdentity {
    /// Bytes that it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        self.auth.as_ref().map_or(0, |(user, password)| {
            user.as_ref().map_or(0, Vec::len) + password.len()
        })
    }
}

impl RedisIdentity {
    /// A new connection's that is in this database.
    pub fn in_database(db: u32) -> Self {
        Self {
            db,
            ..Self::default()
        }
    }

    /// Who reads, as far as it matters for what it is told.
    pub fn reader(&self) -> ReaderIdentity {
        ReaderIdentity {
            auth: self.auth.clone(),
            version: self.version.unwrap_or(2),
        }
    }

    /// The database that commands mean.
    pub fn db(&self) -> u32 {
        self.db
    }

    /// What it is when the server has agreed to `change`.
    pub fn with_change(&self, change: &SettingChange) -> Self {
        let mut after = self.clone();
        match change.clone() {
            SettingChange::Auth(user, password) => after.auth = Some((user, password)),
            SettingChange::Select(db) => after.db = db,
            SettingChange::Name(name) => after.name = name,
            SettingChange::Library(name) => after.library_name = name,
            SettingChange::LibraryVersion(version) => after.library_version = version,
            SettingChange::Hello {
                version,
                auth,
                name,
            } => {
                after.version = version.or(after.version);
                after.auth = auth
                    .map(|(user, password)| (Some(user), password))
                    .or(after.auth);
                after.name = name.unwrap_or(after.name);
            }
        }
        after
    }

    /// The commands that make a connection this, which is new or was reset; `of` is what it was then: a reset forgets all but the library's name.
    pub fn setup_commands(&self, of: Option<&Self>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        if let Some((user, password)) = &self.auth {
            all.push(auth_command(user.as_deref(), password));
        }
        if let Some(version) = self.version {
            all.push(encode_command(&[b"HELLO", version.to_string().as_bytes()]));
        }
        if self.db != 0 {
            all.push(encode_command(&[b"SELECT", self.db.to_string().as_bytes()]));
        }
        if !self.name.is_empty() {
            all.push(encode_command(&[b"CLIENT", b"SETNAME", &self.name]));
        }
        let blank = Self::default();
        let of = of.unwrap_or(&blank);
        if self.library_name != of.library_name {
            all.push(encode_command(&[
                b"CLIENT",
                b"SETINFO",
                b"LIB-NAME",
                &self.library_name,
            ]));
        }
        if self.library_version != of.library_version {
            all.push(encode_command(&[
                b"CLIENT",
                b"SETINFO",
                b"LIB-VER",
                &self.library_version,
            ]));
        }
        all
    }
}

/// A command in the words of the protocol.
pub fn encode_command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Servers before version 6 know no users.
pub fn auth_command(user: Option<&[u8]>, password: &[u8]) -> Vec<u8> {
    match user {
        None | Some(b"default") => encode_command(&[b"AUTH", password]),
        Some(user) => encode_command(&[b"AUTH", user, password]),
    }
}

/// What the server answered when a connection was set up, so that the next one that is set up alike has its answer at once.
#[derive(Debug, Default)]
pub struct SettingReplies(HashMap<(RedisIdentity, SettingChange), SettingReply>);

#[derive(Debug)]
struct SettingReply {
    reply: Vec<u8>,
    accepted: bool,
    received_at: Instant,
}

impl SettingReplies {
    /// The server answered `change` so. A refusal is remembered only of what servers before 7.2 do not know.
    pub fn learn(
        &mut self,
        of: &RedisIdentity,
        change: &SettingChange,
        reply: &[u8],
        agreed: bool,
        now: Instant,
    ) {
        let harmless = matches!(
            change,
            SettingChange::Library(_) | SettingChange::LibraryVersion(_)
        );
        if (!agreed && !harmless) || reply.len() > MAX_SETTING_REPLY_BYTES {
            return;
        }
        if self.0.len() >= MAX_KNOWN_REPLIES {
            self.0.clear();
        }
        self.0.insert(
            (of.clone(), change.clone()),
            SettingReply {
                reply: reply.to_vec(),
                accepted: agreed,
                received_at: now,
            },
        );
    }

    /// What it answered no longer than `age` ago, and what the connection is then.
    pub fn look_up(
        &self,
        of: &RedisIdentity,
        change: &SettingChange,
        now: Instant,
        age: Duration,
    ) -> Option<(&[u8], RedisIdentity)> {
        let answer = self.0.get(&(of.clone(), change.clone()))?;
        let fresh = now.saturating_duration_since(answer.received_at) < age;
        fresh.then(|| {
            (
                &answer.reply[..],
                if answer.accepted {
                    of.with_change(change)
                } else {
                    of.clone()
                },
            )
        })
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
    fn an_identity_is_restored_by_its_commands() {
        let changes = [
            SettingChange::Hello {
                version: Some(3),
                auth: Some((b"u".to_vec(), b"p".to_vec())),
                name: Some(b"n".to_vec()),
            },
            SettingChange::Select(2),
            SettingChange::Library(b"lib".to_vec()),
        ];
        let identity = changes
            .iter()
            .fold(RedisIdentity::default(), |identity, change| {
                identity.with_change(change)
            });
        let bytes = identity.setup_commands(None).concat();
        let text = String::from_utf8(bytes).unwrap();
        let order: Vec<_> = ["AUTH", "HELLO", "SELECT", "SETNAME", "SETINFO"]
            .iter()
            .map(|word| text.find(word).unwrap())
            .collect();
        assert!(order.is_sorted(), "{text:?}");
        assert!(
            identity
                .setup_commands(Some(&identity))
                .concat()
                .windows(7)
                .all(|part| part != b"SETINFO")
        );
        assert!(
            RedisIdentity::default()
                .setup_commands(Some(&identity))
                .concat()
                .windows(7)
                .any(|part| part == b"SETINFO")
        );
    }

    #[test]
    fn replies_are_remembered_for_a_while_and_refusals_are_not() {
        let (mut known, of, now) = (
            SettingReplies::default(),
            RedisIdentity::default(),
            Instant::now(),
        );
        let (select, minute) = (SettingChange::Select(1), Duration::from_secs(60));
        known.learn(&of, &SettingChange::Select(99), b"-ERR", false, now);
        assert!(
            known
                .look_up(&of, &SettingChange::Select(99), now, minute)
                .is_none()
        );
        known.learn(&of, &select, b"+OK\r\n", true, now);
        assert_eq!(
            known.look_up(&of, &select, now, minute).unwrap().1,
            of.with_change(&select)
        );
        assert!(known.look_up(&of, &select, now + minute, minute).is_none());
        known.forget();
        assert!(known.look_up(&of, &select, now, minute).is_none());
    }
}
