//! Effects of Redis commands on their connection (<https://redis.io/docs/latest/commands/>).
//!
//! Most commands leave nothing on a connection and have one reply, so any backend can serve them.
//! The exceptions are listed here.

/// Words of a command that are read; it may have more. Enough for every listed command with its
/// options.
pub const MAX_WORDS: usize = 12;

/// The first words of a command.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommandWords<'a> {
    words: [&'a [u8]; MAX_WORDS],
    count: usize,
    /// The server may split the line into other words.
    is_ambiguous: bool,
}

/// Effect of a command on its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisSessionEffect {
    /// A single reply, and no lasting effect.
    Plain,
    /// A single reply that may take any time, and no lasting effect.
    Blocking,
    /// A setting that another connection can repeat.
    Change(SettingChange),
    /// Begins a transaction.
    Multi,
    /// Ends the transaction.
    EndsTransaction,
    /// Watches keys.
    Watch,
    /// Ends all watches.
    Unwatch,
    /// Leaves state that only a reset removes.
    Pins(&'static str),
    /// Makes the number of replies unknown from here on.
    Opaque(&'static str),
    /// Resets the connection.
    Reset,
    /// Closes the connection.
    Quit,
}

/// A setting that another connection can repeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SettingChange {
    /// `AUTH`: optional user, and password.
    Auth(Option<Vec<u8>>, Vec<u8>),
    /// `HELLO`.
    Hello {
        /// Version of RESP, if given.
        version: Option<u8>,
        /// User and password.
        auth: Option<(Vec<u8>, Vec<u8>)>,
        /// The connection's name.
        name: Option<Vec<u8>>,
    },
    /// `SELECT`.
    Select(u32),
    /// `CLIENT SETNAME`.
    Name(Vec<u8>),
    /// `CLIENT SETINFO LIB-NAME`.
    Library(Vec<u8>),
    /// `CLIENT SETINFO LIB-VER`.
    LibraryVersion(Vec<u8>),
    /// `CLIENT CAPA redirect` of Valkey: the client understands `-REDIRECT`. It cannot be taken back.
    UnderstandsRedirect,
    /// `CLIENT NO-EVICT`: the server keeps the connection although its buffers are large.
    NoEvict(bool),
    /// `CLIENT NO-TOUCH`: commands leave the age of keys as it is.
    NoTouch(bool),
    /// `CLIENT MAINT_NOTIFICATIONS`, with its arguments. Clients send it at their start; most servers
    /// refuse it.
    MaintenanceNotifications(Vec<Vec<u8>>),
}

impl SettingChange {
    /// Returns whether `RESET` may keep this setting: Redis 7.0 keeps `NO-EVICT`.
    pub fn survives_reset(&self) -> bool {
        matches!(
            self,
            Self::UnderstandsRedirect | Self::NoEvict(_) | Self::NoTouch(_)
        )
    }
}

impl<'a> CommandWords<'a> {
    /// Parses a whole command, or the beginning of a long one. `None`: it is not a command.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.first() == Some(&b'*') {
            Self::parse_array(bytes)
        } else {
            Some(Self::parse_inline(bytes))
        }
    }

    fn parse_array(bytes: &'a [u8]) -> Option<Self> {
        let (count, mut rest) = parse_number(&bytes[1..])?;
        let mut words = Self::default();
        while words.count < count.min(MAX_WORDS) && !rest.is_empty() {
            let (length, after) = parse_number(rest.strip_prefix(b"$")?)?;
            // A long command may end within this word; the rest is not needed.
            words.push(&after[..length.min(after.len())]);
            rest = after.get(length + 2..).unwrap_or_default();
        }
        Some(words)
    }

    /// Splits an inline command. The server alone knows how it reads quotes and unusual blanks.
    fn parse_inline(bytes: &'a [u8]) -> Self {
        // Control characters other than tab, CR and LF: Redis and this parser could split them
        // differently.
        let is_ambiguous =
            |byte: &u8| matches!(byte, b'"' | b'\'' | b'\\' | 0..=8 | 0x0b..=0x0c | 0x0e..=0x1f);
        let mut words = Self {
            is_ambiguous: bytes.iter().any(is_ambiguous),
            ..Self::default()
        };
        for word in bytes
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .take(MAX_WORDS)
        {
            words.push(word);
        }
        words
    }

    fn push(&mut self, word: &'a [u8]) {
        self.words[self.count] = word;
        self.count += 1;
    }

    /// Returns word `at`, empty if there is none.
    pub fn get(&self, at: usize) -> &'a [u8] {
        self.all().get(at).copied().unwrap_or_default()
    }

    /// Returns all words that were read.
    pub fn all(&self) -> &[&'a [u8]] {
        &self.words[..self.count]
    }

    fn is_word(&self, at: usize, what: &str) -> bool {
        self.get(at).eq_ignore_ascii_case(what.as_bytes())
    }

    /// Returns the effect on the connection. Within a transaction (`queued`) a setting takes effect
    /// later, if at all.
    pub fn session_effect(&self, queued: bool) -> RedisSessionEffect {
        match self.standalone_effect() {
            // As below, and the connection cannot be cleaned for others.
            RedisSessionEffect::Change(change) if queued && change.survives_reset() => {
                RedisSessionEffect::Opaque("a flag set within MULTI")
            }
            // `EXEC` may still fail, so the setting can be neither assumed nor repeated.
            RedisSessionEffect::Change(_) if queued => {
                RedisSessionEffect::Pins("a setting changed within MULTI")
            }
            // Within a transaction Redis does not block, and `UNWATCH` has no effect before `EXEC`.
            RedisSessionEffect::Blocking | RedisSessionEffect::Unwatch if queued => {
                RedisSessionEffect::Plain
            }
            RedisSessionEffect::EndsTransaction if !queued => RedisSessionEffect::Plain,
            meaning => meaning,
        }
    }

    fn standalone_effect(&self) -> RedisSessionEffect {
        if self.is_ambiguous {
            return RedisSessionEffect::Opaque("a line with quotes");
        }
        // Longer verbs are none of the listed ones.
        let mut verb = [0_u8; 16];
        let first = self.get(0);
        let Some(upper) = verb.get_mut(..first.len()) else {
            return RedisSessionEffect::Plain;
        };
        upper.copy_from_slice(first);
        upper.make_ascii_uppercase();
        match &*upper {
            b"MULTI" => RedisSessionEffect::Multi,
            b"EXEC" | b"DISCARD" => RedisSessionEffect::EndsTransaction,
            b"WATCH" => RedisSessionEffect::Watch,
            b"UNWATCH" => RedisSessionEffect::Unwatch,
            b"QUIT" => RedisSessionEffect::Quit,
            b"RESET" => RedisSessionEffect::Reset,
            b"AUTH" | b"HELLO" | b"SELECT" => self.setting_effect(upper),
            b"CLIENT" => self.client_effect(),
            b"BLPOP" | b"BRPOP" | b"BRPOPLPUSH" | b"BLMOVE" | b"BLMPOP" | b"BZPOPMIN"
            | b"BZPOPMAX" | b"BZMPOP" | b"WAIT" | b"WAITAOF" => RedisSessionEffect::Blocking,
            // `BLOCK` may be any word before the stream names, so all read words are searched.
            b"XREAD" | b"XREADGROUP" if (1..MAX_WORDS).any(|at| self.is_word(at, "BLOCK")) => {
                RedisSessionEffect::Blocking
            }
            b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE"
            | b"SUNSUBSCRIBE" => RedisSessionEffect::Opaque("SUBSCRIBE"),
            b"MONITOR" => RedisSessionEffect::Opaque("MONITOR"),
            // Replication turns the connection into a stream of commands.
            b"SYNC" | b"PSYNC" | b"REPLCONF" => RedisSessionEffect::Opaque("replication"),
            b"DEBUG" => RedisSessionEffect::Opaque("DEBUG"),
            b"SCRIPT" if self.is_word(1, "DEBUG") => RedisSessionEffect::Opaque("DEBUG"),
            b"READONLY" | b"READWRITE" | b"ASKING" => {
                RedisSessionEffect::Pins("a mode of Redis Cluster")
            }
            _ => RedisSessionEffect::Plain,
        }
    }

    /// Returns the effect of a setting. One in an unusual form pins the connection: the server
    /// decides what it does.
    fn setting_effect(&self, verb: &[u8]) -> RedisSessionEffect {
        let change = match verb {
            b"AUTH" => self.parse_auth(),
            b"HELLO" => self.parse_hello(),
            _ => std::str::from_utf8(self.get(1))
                .ok()
                .and_then(|text| text.parse().ok())
                .map(SettingChange::Select),
        };
        change.map_or(
            RedisSessionEffect::Pins("an unusual setting"),
            RedisSessionEffect::Change,
        )
    }

    fn parse_auth(&self) -> Option<SettingChange> {
        match self.all() {
            [_, password] => Some(SettingChange::Auth(None, password.to_vec())),
            [_, user, password] => {
                Some(SettingChange::Auth(Some(user.to_vec()), password.to_vec()))
            }
            _ => None,
        }
    }

    fn parse_hello(&self) -> Option<SettingChange> {
        let version = match self.all().get(1) {
            None => None,
            Some(text) => Some(std::str::from_utf8(text).ok()?.parse().ok()?),
        };
        let (mut auth, mut name, mut at) = (None, None, 2);
        while at < self.count {
            if self.is_word(at, "AUTH") && at + 2 < self.count {
                auth = Some((self.get(at + 1).to_vec(), self.get(at + 2).to_vec()));
                at += 3;
            } else if self.is_word(at, "SETNAME") && at + 1 < self.count {
                name = Some(self.get(at + 1).to_vec());
                at += 2;
            } else {
                return None;
            }
        }
        Some(SettingChange::Hello {
            version,
            auth,
            name,
        })
    }

    fn client_effect(&self) -> RedisSessionEffect {
        let value = |at| self.get(at).to_vec();
        if self.is_word(1, "SETNAME") && self.count == 3 {
            RedisSessionEffect::Change(SettingChange::Name(value(2)))
        } else if self.is_word(1, "SETINFO") && self.is_word(2, "LIB-NAME") && self.count == 4 {
            RedisSessionEffect::Change(SettingChange::Library(value(3)))
        } else if self.is_word(1, "SETINFO") && self.is_word(2, "LIB-VER") && self.count == 4 {
            RedisSessionEffect::Change(SettingChange::LibraryVersion(value(3)))
        } else if self.is_word(1, "MAINT_NOTIFICATIONS") && self.count < MAX_WORDS {
            let arguments = (2..self.count).map(value).collect();
            RedisSessionEffect::Change(SettingChange::MaintenanceNotifications(arguments))
        } else if let Some(change) = self.parse_client_flag() {
            RedisSessionEffect::Change(change)
        } else if self.is_word(1, "REPLY") {
            RedisSessionEffect::Opaque("CLIENT REPLY")
        } else if [
            "LIST", "INFO", "KILL", "PAUSE", "UNPAUSE", "UNBLOCK", "GETNAME", "HELP",
        ]
        .iter()
        .any(|harmless| self.is_word(1, harmless))
        {
            RedisSessionEffect::Plain
        } else {
            // Among them is `CLIENT ID`: the client may name the id later, in `CLIENT KILL`,
            // `CLIENT UNBLOCK` or `CLIENT TRACKING … REDIRECT`, and mean this connection. After
            // `CLIENT TRACKING` and `CLIENT CACHING` the server sends it invalidations.
            RedisSessionEffect::Pins("CLIENT")
        }
    }

    /// Parses a flag that clients set at their start.
    fn parse_client_flag(&self) -> Option<SettingChange> {
        if self.count != 3 {
            return None;
        }
        if self.is_word(1, "CAPA") {
            let is_known = self.is_word(2, "REDIRECT");
            return is_known.then_some(SettingChange::UnderstandsRedirect);
        }
        let is_on = match (self.is_word(2, "ON"), self.is_word(2, "OFF")) {
            (false, false) => return None,
            (is_on, _) => is_on,
        };
        if self.is_word(1, "NO-EVICT") {
            Some(SettingChange::NoEvict(is_on))
        } else {
            let is_no_touch = self.is_word(1, "NO-TOUCH");
            is_no_touch.then_some(SettingChange::NoTouch(is_on))
        }
    }
}

/// Parses a number and returns what follows its line.
fn parse_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = memchr::memchr(b'\n', bytes)?;
    let digits = std::str::from_utf8(bytes[..end].strip_suffix(b"\r")?).ok()?;
    // `parse` would accept a plus sign, which the server refuses.
    if digits.starts_with('+') {
        return None;
    }
    Some((digits.parse().ok()?, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect_of(text: &str) -> RedisSessionEffect {
        CommandWords::parse(text.as_bytes())
            .unwrap()
            .session_effect(false)
    }

    #[test]
    fn commands_have_the_documented_effect() {
        let plain = [
            "GET a",
            "set a b",
            "PING",
            "CLIENT LIST",
            "xread COUNT 1 STREAMS a 0",
            "EXEC",
            "averyveryverylongcommand x",
        ];
        for text in plain {
            assert_eq!(effect_of(text), RedisSessionEffect::Plain, "{text}");
        }
        assert_eq!(effect_of("blpop a 0"), RedisSessionEffect::Blocking);
        assert_eq!(
            effect_of("XREADGROUP GROUP g c COUNT 1 BLOCK 0 STREAMS a >"),
            RedisSessionEffect::Blocking
        );
        assert_eq!(
            effect_of("select 3"),
            RedisSessionEffect::Change(SettingChange::Select(3))
        );
        assert_eq!(
            effect_of("AUTH p"),
            RedisSessionEffect::Change(SettingChange::Auth(None, b"p".to_vec()))
        );
        assert_eq!(
            effect_of("HELLO"),
            RedisSessionEffect::Change(SettingChange::Hello {
                version: None,
                auth: None,
                name: None
            })
        );
        assert_eq!(
            effect_of("client setname me"),
            RedisSessionEffect::Change(SettingChange::Name(b"me".to_vec()))
        );
        for text in [
            "CLIENT TRACKING ON",
            "client id",
            "READONLY",
            "SELECT x",
            "AUTH",
            "HELLO 3 AUTH x",
        ] {
            assert!(
                matches!(effect_of(text), RedisSessionEffect::Pins(_)),
                "{text}"
            );
        }
        for text in ["GET \"a b\"", "'SELECT' 5", "SELECT\x0b5", "MULTI\0x"] {
            assert!(
                matches!(effect_of(text), RedisSessionEffect::Opaque(_)),
                "{text}"
            );
        }
        for text in [
            "SUBSCRIBE a",
            "MONITOR",
            "CLIENT REPLY OFF",
            "PSYNC ? -1",
            "SCRIPT DEBUG YES",
            "DEBUG SLEEP 1",
        ] {
            assert!(
                matches!(effect_of(text), RedisSessionEffect::Opaque(_)),
                "{text}"
            );
        }
    }

    #[test]
    fn flags_of_a_client_are_settings() {
        for (text, change) in [
            ("client capa redirect", SettingChange::UnderstandsRedirect),
            ("CLIENT NO-EVICT ON", SettingChange::NoEvict(true)),
            ("CLIENT NO-EVICT off", SettingChange::NoEvict(false)),
            ("CLIENT NO-TOUCH ON", SettingChange::NoTouch(true)),
        ] {
            assert_eq!(
                effect_of(text),
                RedisSessionEffect::Change(change),
                "{text}"
            );
        }
        for text in ["CLIENT CAPA redirect other", "CLIENT NO-EVICT maybe"] {
            let effect = effect_of(text);
            assert!(matches!(effect, RedisSessionEffect::Pins(_)), "{text}");
        }
    }

    #[test]
    fn a_setting_within_a_transaction_pins_the_connection() {
        let queued = |text: &str| {
            CommandWords::parse(text.as_bytes())
                .unwrap()
                .session_effect(true)
        };
        assert!(matches!(queued("SELECT 1"), RedisSessionEffect::Pins(_)));
        let flag = queued("CLIENT NO-EVICT ON");
        assert!(matches!(flag, RedisSessionEffect::Opaque(_)), "{flag:?}");
        assert_eq!(queued("BLPOP a 0"), RedisSessionEffect::Plain);
        assert_eq!(queued("EXEC"), RedisSessionEffect::EndsTransaction);
    }

    #[test]
    fn the_words_of_an_array_are_its_strings() {
        let words = CommandWords::parse(b"*3\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$3\r\na b\r\n").unwrap();
        assert_eq!(words.all(), [&b"HELLO"[..], b"3", b"a b"]);
        let long = CommandWords::parse(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\naaaa").unwrap();
        assert_eq!(long.get(0), b"SET");
        assert!(CommandWords::parse(b"*1\r\n:1\r\n").is_none());
    }
}
