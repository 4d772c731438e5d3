//! What a command of Redis does to its connection (<https://redis.io/docs/latest/commands/>).
//!
//! Nearly all commands leave nothing behind on a connection and have one reply: they may go to any backend. Those that do not are listed here.

/// Words of a command that are looked at; it may have more.
pub const WORDS: usize = 12;

/// The first words of a command.
#[derive(Debug, Clone, Copy, Default)]
pub struct Words<'a> {
    words: [&'a [u8]; WORDS],
    count: usize,
    /// The server may cut it into other words.
    unclear: bool,
}

/// What a command does to its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// One reply, and nothing is left.
    Plain,
    /// The same, but the reply may take as long as it likes.
    Blocking,
    /// The connection is another afterwards, in a way that can be done again elsewhere.
    Change(Change),
    /// A transaction begins.
    Multi,
    /// The transaction ends.
    Ends,
    /// Keys are watched.
    Watch,
    /// And no longer.
    Unwatch,
    /// Something stays that only a reset removes.
    Keeps(&'static str),
    /// From here on, replies can't be counted.
    Opaque(&'static str),
    /// Everything is as on a new connection.
    Reset,
    /// The client goes.
    Quit,
}

/// What can be done again on another connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// `AUTH`: user, if said, and password.
    Auth(Option<Vec<u8>>, Vec<u8>),
    /// `HELLO`.
    Hello {
        /// Version of RESP, if said.
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
}

impl<'a> Words<'a> {
    /// Of a whole command, or the beginning of a long one. `None`: it is no command.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        if bytes.first() == Some(&b'*') { Self::array(bytes) } else { Some(Self::inline(bytes)) }
    }

    fn array(bytes: &'a [u8]) -> Option<Self> {
        let (count, mut rest) = number(&bytes[1..])?;
        let mut words = Self::default();
        while words.count < count.min(WORDS) && !rest.is_empty() {
            let (length, after) = number(rest.strip_prefix(b"$")?)?;
            words.push(&after[..length.min(after.len())]);
            rest = after.get(length + 2..).unwrap_or_default();
        }
        Some(words)
    }

    /// As one types it with telnet. Quotes, and blanks that are none elsewhere, are the server's to read.
    fn inline(bytes: &'a [u8]) -> Self {
        let odd = |byte: &u8| matches!(byte, b'"' | b'\'' | b'\\' | 0..=8 | 0x0b..=0x0c | 0x0e..=0x1f);
        let mut words = Self { unclear: bytes.iter().any(odd), ..Self::default() };
        for word in bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).take(WORDS) {
            words.push(word);
        }
        words
    }

    fn push(&mut self, word: &'a [u8]) {
        self.words[self.count] = word;
        self.count += 1;
    }

    /// Word `at`, empty if there is none.
    pub fn get(&self, at: usize) -> &'a [u8] {
        self.all().get(at).copied().unwrap_or_default()
    }

    /// All that are looked at.
    pub fn all(&self) -> &[&'a [u8]] {
        &self.words[..self.count]
    }

    fn is(&self, at: usize, what: &str) -> bool {
        self.get(at).eq_ignore_ascii_case(what.as_bytes())
    }

    /// What it does. In a transaction (`queued`) a command that changes its connection does so later, if ever.
    pub fn meaning(&self, queued: bool) -> Meaning {
        match self.alone() {
            Meaning::Change(_) if queued => Meaning::Keeps("a setting changed within MULTI"),
            Meaning::Blocking | Meaning::Unwatch if queued => Meaning::Plain,
            Meaning::Ends if !queued => Meaning::Plain,
            meaning => meaning,
        }
    }

    fn alone(&self) -> Meaning {
        if self.unclear {
            return Meaning::Opaque("a line with quotes");
        }
        let mut verb = [0_u8; 16];
        let first = self.get(0);
        let Some(upper) = verb.get_mut(..first.len()) else { return Meaning::Plain };
        upper.copy_from_slice(first);
        upper.make_ascii_uppercase();
        match &*upper {
            b"MULTI" => Meaning::Multi,
            b"EXEC" | b"DISCARD" => Meaning::Ends,
            b"WATCH" => Meaning::Watch,
            b"UNWATCH" => Meaning::Unwatch,
            b"QUIT" => Meaning::Quit,
            b"RESET" => Meaning::Reset,
            b"AUTH" | b"HELLO" | b"SELECT" => self.change(upper),
            b"CLIENT" => self.client(),
            b"BLPOP" | b"BRPOP" | b"BRPOPLPUSH" | b"BLMOVE" | b"BLMPOP" | b"BZPOPMIN" | b"BZPOPMAX" | b"BZMPOP"
            | b"WAIT" | b"WAITAOF" => Meaning::Blocking,
            b"XREAD" | b"XREADGROUP" if (1..WORDS).any(|at| self.is(at, "BLOCK")) => Meaning::Blocking,
            b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE" => {
                Meaning::Opaque("SUBSCRIBE")
            }
            b"MONITOR" => Meaning::Opaque("MONITOR"),
            b"SYNC" | b"PSYNC" | b"REPLCONF" => Meaning::Opaque("replication"),
            b"DEBUG" => Meaning::Opaque("DEBUG"),
            b"SCRIPT" if self.is(1, "DEBUG") => Meaning::Opaque("DEBUG"),
            b"READONLY" | b"READWRITE" | b"ASKING" => Meaning::Keeps("a mode of Redis Cluster"),
            _ => Meaning::Plain,
        }
    }

    /// A change that is not written as the documentation says goes unmarked: the server refuses it.
    fn change(&self, verb: &[u8]) -> Meaning {
        let change = match verb {
            b"AUTH" => self.auth(),
            b"HELLO" => self.hello(),
            _ => std::str::from_utf8(self.get(1)).ok().and_then(|text| text.parse().ok()).map(Change::Select),
        };
        change.map_or(Meaning::Keeps("an unusual setting"), Meaning::Change)
    }

    fn auth(&self) -> Option<Change> {
        match self.all() {
            [_, password] => Some(Change::Auth(None, password.to_vec())),
            [_, user, password] => Some(Change::Auth(Some(user.to_vec()), password.to_vec())),
            _ => None,
        }
    }

    fn hello(&self) -> Option<Change> {
        let version = match self.all().get(1) {
            None => None,
            Some(text) => Some(std::str::from_utf8(text).ok()?.parse().ok()?),
        };
        let (mut auth, mut name, mut at) = (None, None, 2);
        while at < self.count {
            if self.is(at, "AUTH") && at + 2 < self.count {
                auth = Some((self.get(at + 1).to_vec(), self.get(at + 2).to_vec()));
                at += 3;
            } else if self.is(at, "SETNAME") && at + 1 < self.count {
                name = Some(self.get(at + 1).to_vec());
                at += 2;
            } else {
                return None;
            }
        }
        Some(Change::Hello { version, auth, name })
    }

    fn client(&self) -> Meaning {
        let value = |at| self.get(at).to_vec();
        if self.is(1, "SETNAME") && self.count == 3 {
            Meaning::Change(Change::Name(value(2)))
        } else if self.is(1, "SETINFO") && self.is(2, "LIB-NAME") && self.count == 4 {
            Meaning::Change(Change::Library(value(3)))
        } else if self.is(1, "SETINFO") && self.is(2, "LIB-VER") && self.count == 4 {
            Meaning::Change(Change::LibraryVersion(value(3)))
        } else if self.is(1, "REPLY") {
            Meaning::Opaque("CLIENT REPLY")
        } else if ["LIST", "INFO", "KILL", "PAUSE", "UNPAUSE", "UNBLOCK", "GETNAME", "HELP"]
            .iter()
            .any(|harmless| self.is(1, harmless))
        {
            Meaning::Plain
        } else {
            // Among them `ID`: who knows its number wants to keep it.
            Meaning::Keeps("CLIENT")
        }
    }
}

/// A number and what comes after its line.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = memchr::memchr(b'\n', bytes)?;
    let digits = std::str::from_utf8(bytes[..end].strip_suffix(b"\r")?).ok()?;
    if digits.starts_with('+') {
        return None;
    }
    Some((digits.parse().ok()?, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(text: &str) -> Meaning {
        Words::read(text.as_bytes()).unwrap().meaning(false)
    }

    #[test]
    fn commands_do_what_the_documentation_says() {
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
            assert_eq!(meaning(text), Meaning::Plain, "{text}");
        }
        assert_eq!(meaning("blpop a 0"), Meaning::Blocking);
        assert_eq!(meaning("XREADGROUP GROUP g c COUNT 1 BLOCK 0 STREAMS a >"), Meaning::Blocking);
        assert_eq!(meaning("select 3"), Meaning::Change(Change::Select(3)));
        assert_eq!(meaning("AUTH p"), Meaning::Change(Change::Auth(None, b"p".to_vec())));
        assert_eq!(meaning("HELLO"), Meaning::Change(Change::Hello { version: None, auth: None, name: None }));
        assert_eq!(meaning("client setname me"), Meaning::Change(Change::Name(b"me".to_vec())));
        for text in ["CLIENT TRACKING ON", "client id", "READONLY", "SELECT x", "AUTH", "HELLO 3 AUTH x"] {
            assert!(matches!(meaning(text), Meaning::Keeps(_)), "{text}");
        }
        for text in ["GET \"a b\"", "'SELECT' 5", "SELECT\x0b5", "MULTI\0x"] {
            assert!(matches!(meaning(text), Meaning::Opaque(_)), "{text}");
        }
        for text in ["SUBSCRIBE a", "MONITOR", "CLIENT REPLY OFF", "PSYNC ? -1", "SCRIPT DEBUG YES", "DEBUG SLEEP 1"] {
            assert!(matches!(meaning(text), Meaning::Opaque(_)), "{text}");
        }
    }

    #[test]
    fn in_a_transaction_a_setting_keeps_its_connection() {
        let queued = |text: &str| Words::read(text.as_bytes()).unwrap().meaning(true);
        assert!(matches!(queued("SELECT 1"), Meaning::Keeps(_)));
        assert_eq!(queued("BLPOP a 0"), Meaning::Plain);
        assert_eq!(queued("EXEC"), Meaning::Ends);
    }

    #[test]
    fn the_words_of_an_array_are_its_strings() {
        let words = Words::read(b"*3\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$3\r\na b\r\n").unwrap();
        assert_eq!(words.all(), [&b"HELLO"[..], b"3", b"a b"]);
        let long = Words::read(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\naaaa").unwrap();
        assert_eq!(long.get(0), b"SET");
        assert!(Words::read(b"*1\r\n:1\r\n").is_none());
    }
}
