//! Settings of a Redis connection that another connection can repeat.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::session_effect::SettingChange;

/// Replies that are remembered per destination.
const MAX_KNOWN_REPLIES: usize = 256;
/// The longest reply that is remembered.
pub const MAX_SETTING_REPLY_BYTES: usize = 4096;

/// Settings that commands can repeat. Connections with equal settings can serve each other's
/// clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RedisIdentity {
    auth: Option<(Option<Vec<u8>>, Vec<u8>)>,
    version: Option<u8>,
    db: u32,
    name: Vec<u8>,
    lib_name: Vec<u8>,
    lib_version: Vec<u8>,
    understands_redirect: bool,
    no_evict: bool,
    no_touch: bool,
}

/// The part of an identity that decides the reply to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderIdentity {
    auth: Option<(Option<Vec<u8>>, Vec<u8>)>,
    version: u8,
}

impl ReaderIdentity {
    /// Returns the heap bytes of this value.
    pub fn heap_bytes(&self) -> usize {
        self.auth.as_ref().map_or(0, |(user, password)| {
            user.as_ref().map_or(0, Vec::len) + password.len()
        })
    }
}

impl RedisIdentity {
    /// Returns the identity of a new connection that is in this database.
    pub fn in_database(db: u32) -> Self {
        Self {
            db,
            ..Self::default()
        }
    }

    /// Returns the part of the identity that replies depend on.
    pub fn reader(&self) -> ReaderIdentity {
        // Without `HELLO` a connection speaks RESP 2.
        ReaderIdentity {
            auth: self.auth.clone(),
            version: self.version.unwrap_or(2),
        }
    }

    /// Returns the current database.
    pub fn db(&self) -> u32 {
        self.db
    }

    /// Returns the identity after the server has accepted `change`.
    pub fn with_change(&self, change: &SettingChange) -> Self {
        let mut after = self.clone();
        match change.clone() {
            SettingChange::Auth(user, password) => after.auth = Some((user, password)),
            SettingChange::Select(db) => after.db = db,
            SettingChange::Name(name) => after.name = name,
            SettingChange::Library(name) => after.lib_name = name,
            SettingChange::LibraryVersion(version) => after.lib_version = version,
            SettingChange::UnderstandsRedirect => after.understands_redirect = true,
            SettingChange::NoEvict(is_on) => after.no_evict = is_on,
            SettingChange::NoTouch(is_on) => after.no_touch = is_on,
            // A server that accepts it sends messages by itself, so the client is pinned.
            SettingChange::MaintenanceNotifications(_) => {}
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

    /// Returns the commands that give a connection this identity. `before` is the identity before a
    /// reset: `RESET` keeps only the library's name. `None`: the connection is new.
    pub fn setup_commands(&self, before: Option<&Self>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        // The order is the server's: without a login it refuses every other command.
        if let Some((user, password)) = &self.auth {
            all.push(auth_command(user.as_deref(), password));
        }
        // `HELLO` carries no credentials here, because `AUTH` has already sent them.
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
        let before = before.unwrap_or(&blank);
        if self.lib_name != before.lib_name {
            all.push(encode_command(&[
                b"CLIENT",
                b"SETINFO",
                b"LIB-NAME",
                &self.lib_name,
            ]));
        }
        if self.lib_version != before.lib_version {
            all.push(encode_command(&[
                b"CLIENT",
                b"SETINFO",
                b"LIB-VER",
                &self.lib_version,
            ]));
        }
        all.extend(self.flag_commands());
        all
    }

    /// Returns the commands for flags that are set. A reset may keep them; to set one again changes
    /// nothing.
    fn flag_commands(&self) -> impl Iterator<Item = Vec<u8>> {
        let flags: [(bool, [&[u8]; 3]); 3] = [
            (self.understands_redirect, [b"CLIENT", b"CAPA", b"redirect"]),
            (self.no_evict, [b"CLIENT", b"NO-EVICT", b"ON"]),
            (self.no_touch, [b"CLIENT", b"NO-TOUCH", b"ON"]),
        ];
        let set = flags.into_iter().filter(|(is_set, _)| *is_set);
        set.map(|(_, words)| encode_command(&words))
    }
}

/// Encodes a command as an array of bulk strings.
pub fn encode_command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Encodes a login. Servers before version 6 know no users.
pub fn auth_command(user: Option<&[u8]>, password: &[u8]) -> Vec<u8> {
    match user {
        // The one-word form means the user `default` in all versions.
        None | Some(b"default") => encode_command(&[b"AUTH", password]),
        Some(user) => encode_command(&[b"AUTH", user, password]),
    }
}

/// Replies to settings, so that the next connection with equal settings gets its replies at once.
#[derive(Debug, Default)]
pub struct SettingReplies(HashMap<(RedisIdentity, SettingChange), SettingReply>);

#[derive(Debug)]
struct SettingReply {
    reply: Vec<u8>,
    accepted: bool,
    received_at: Instant,
}

impl SettingReplies {
    /// Remembers a reply. A refusal is remembered only for what many servers do not know: the
    /// library's name and version (before 7.2), flags, and notifications of maintenance.
    pub fn learn(
        &mut self,
        before: &RedisIdentity,
        change: &SettingChange,
        reply: &[u8],
        accepted: bool,
        now: Instant,
    ) {
        // Any other refusal may be temporary, for example a password that is changed later.
        let harmless = matches!(
            change,
            SettingChange::Library(_)
                | SettingChange::LibraryVersion(_)
                | SettingChange::UnderstandsRedirect
                | SettingChange::NoEvict(_)
                | SettingChange::NoTouch(_)
                | SettingChange::MaintenanceNotifications(_)
        );
        let pins = accepted && matches!(change, SettingChange::MaintenanceNotifications(_));
        if pins || (!accepted && !harmless) || reply.len() > MAX_SETTING_REPLY_BYTES {
            return;
        }
        if self.0.len() >= MAX_KNOWN_REPLIES {
            // Rare, and the replies come back with the next connections: an order of use is not
            // worth its bookkeeping.
            self.0.clear();
        }
        self.0.insert(
            (before.clone(), change.clone()),
            SettingReply {
                reply: reply.to_vec(),
                accepted,
                received_at: now,
            },
        );
    }

    /// Returns the reply of at most `age` ago, and the identity that follows.
    pub fn look_up(
        &self,
        before: &RedisIdentity,
        change: &SettingChange,
        now: Instant,
        age: Duration,
    ) -> Option<(&[u8], RedisIdentity)> {
        let answer = self.0.get(&(before.clone(), change.clone()))?;
        // A password may be revoked meanwhile, so no reply is reused for longer than a connection
        // stays idle.
        let fresh = now.saturating_duration_since(answer.received_at) < age;
        fresh.then(|| {
            (
                &answer.reply[..],
                if answer.accepted {
                    before.with_change(change)
                } else {
                    before.clone()
                },
            )
        })
    }

    /// Forgets all replies: the server refused a setting that it had accepted, or was unreachable.
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
    fn flags_are_repeated_on_a_new_and_on_a_reset_connection() {
        let on = [
            SettingChange::UnderstandsRedirect,
            SettingChange::NoEvict(true),
            SettingChange::NoTouch(true),
        ];
        let with = |identity: RedisIdentity, change| identity.with_change(change);
        let identity = on.iter().fold(RedisIdentity::default(), with);
        for before in [None, Some(&identity)] {
            let text = String::from_utf8(identity.setup_commands(before).concat()).unwrap();
            for word in ["CAPA", "NO-EVICT", "NO-TOUCH"] {
                assert!(text.contains(word), "{word}: {text:?}");
            }
        }
        let off = [SettingChange::NoEvict(false), SettingChange::NoTouch(false)];
        let identity = off.iter().fold(identity, with);
        let text = String::from_utf8(identity.setup_commands(None).concat()).unwrap();
        assert!(text.contains("CAPA") && !text.contains("NO-"), "{text:?}");
    }

    #[test]
    fn replies_are_remembered_for_a_while_and_refusals_are_not() {
        let (mut replies, before, now) = (
            SettingReplies::default(),
            RedisIdentity::default(),
            Instant::now(),
        );
        let (select, minute) = (SettingChange::Select(1), Duration::from_secs(60));
        replies.learn(&before, &SettingChange::Select(99), b"-ERR", false, now);
        assert!(
            replies
                .look_up(&before, &SettingChange::Select(99), now, minute)
                .is_none()
        );
        replies.learn(&before, &select, b"+OK\r\n", true, now);
        assert_eq!(
            replies.look_up(&before, &select, now, minute).unwrap().1,
            before.with_change(&select)
        );
        assert!(
            replies
                .look_up(&before, &select, now + minute, minute)
                .is_none()
        );
        replies.forget();
        assert!(replies.look_up(&before, &select, now, minute).is_none());
    }
}
