//! Effects of Redis commands on values (<https://redis.io/docs/latest/commands/>).
//!
//! They decide which reads the cache can answer, which entries a command invalidates, and which
//! writes can be acknowledged early. A command that is not listed may have written anything.

use super::session_effect::{CommandWords, MAX_WORDS};

/// Effect of a command on values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandEffect {
    /// The command changes no value.
    Nothing,
    /// The command reads one value, which is its whole reply.
    Reads(ValueRead),
    /// The command may change these keys of its database.
    Writes(Vec<Vec<u8>>),
    /// The command may change any value.
    Anything,
}

/// A read of one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueRead {
    /// Key of the value.
    pub key: Vec<u8>,
    /// Read by `MGET`, which wraps the value in an array of one.
    pub is_mget: bool,
}

/// The longest listed verb. A longer one is unknown.
const MAX_VERB_BYTES: usize = 16;

/// Commands that change at most the key that follows. Sorted for binary search.
const SINGLE_KEY_WRITES: &[&str] = &[
    "APPEND",
    "DECR",
    "DECRBY",
    "EXPIRE",
    "EXPIREAT",
    "GEOADD",
    "GETDEL",
    "GETEX",
    "GETSET",
    "HDEL",
    "HINCRBY",
    "HINCRBYFLOAT",
    "HMSET",
    "HSET",
    "HSETNX",
    "INCR",
    "INCRBY",
    "INCRBYFLOAT",
    "LINSERT",
    "LPOP",
    "LPUSH",
    "LPUSHX",
    "LREM",
    "LSET",
    "LTRIM",
    "PERSIST",
    "PEXPIRE",
    "PEXPIREAT",
    "PFADD",
    "PSETEX",
    "RESTORE",
    "RPOP",
    "RPUSH",
    "RPUSHX",
    "SADD",
    "SET",
    "SETBIT",
    "SETEX",
    "SETNX",
    "SETRANGE",
    "SPOP",
    "SREM",
    "XACK",
    "XADD",
    "XDEL",
    "XTRIM",
    "ZADD",
    "ZINCRBY",
    "ZPOPMAX",
    "ZPOPMIN",
    "ZREM",
];

/// Commands that change no value. Sorted for binary search.
const READ_ONLY_COMMANDS: &[&str] = &[
    "BITCOUNT",
    "BITPOS",
    "CLIENT",
    "COMMAND",
    "DBSIZE",
    "DISCARD",
    "ECHO",
    "EXISTS",
    "GET",
    "GETBIT",
    "GETRANGE",
    "HEXISTS",
    "HGET",
    "HGETALL",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HSCAN",
    "HSTRLEN",
    "HVALS",
    "INFO",
    "KEYS",
    "LINDEX",
    "LLEN",
    "LPOS",
    "LRANGE",
    "MGET",
    "MULTI",
    "PFCOUNT",
    "PING",
    "PTTL",
    "PUBLISH",
    "RANDOMKEY",
    "SCAN",
    "SCARD",
    "SISMEMBER",
    "SMEMBERS",
    "SMISMEMBER",
    "SRANDMEMBER",
    "SSCAN",
    "STRLEN",
    "TIME",
    "TTL",
    "TYPE",
    "UNWATCH",
    "WATCH",
    "XLEN",
    "XRANGE",
    "XREAD",
    "XREVRANGE",
    "ZCARD",
    "ZCOUNT",
    "ZMSCORE",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZRANK",
    "ZREVRANGE",
    "ZREVRANGEBYSCORE",
    "ZREVRANK",
    "ZSCAN",
    "ZSCORE",
];

/// Classifies a command. `whole` says whether all of it was read.
pub fn classify_command(words: &CommandWords<'_>, whole: bool) -> CommandEffect {
    let (mut verb, first) = ([0_u8; MAX_VERB_BYTES], words.get(0));
    let Some(upper) = verb.get_mut(..first.len()) else {
        return CommandEffect::Anything;
    };
    upper.copy_from_slice(first);
    upper.make_ascii_uppercase();
    // Only the first words are kept. A command that fills them may have more keys.
    let seen = whole && words.all().len() < MAX_WORDS;
    let rest = words.all().get(1..).unwrap_or_default();
    let every = |step: usize| {
        CommandEffect::Writes(rest.iter().step_by(step).map(|key| key.to_vec()).collect())
    };
    match (&*upper, rest) {
        (b"GET" | b"MGET", [key]) if whole => CommandEffect::Reads(ValueRead {
            key: key.to_vec(),
            is_mget: upper == b"MGET",
        }),
        (b"DEL" | b"UNLINK" | b"RENAME" | b"RENAMENX", _) if seen => every(1),
        (b"MSET" | b"MSETNX", _) if seen => every(2),
        (verb, [key, ..]) if whole && writes_single_key(verb) => {
            CommandEffect::Writes(vec![key.to_vec()])
        }
        (verb, _) if is_read_only(verb) => CommandEffect::Nothing,
        _ => CommandEffect::Anything,
    }
}

/// Returns whether the only reply to a command, if it succeeds, is `+OK`.
pub fn has_constant_reply(words: &CommandWords<'_>) -> bool {
    let is = |at: usize, what: &str| words.get(at).eq_ignore_ascii_case(what.as_bytes());
    // The client has its reply before the server executes the command, so no option may make the
    // reply depend on the data: no `NX`, `XX`, `GET`.
    let timed = || ["EX", "PX", "EXAT", "PXAT"].iter().any(|unit| is(3, unit));
    match words.all().len() {
        3 => is(0, "SET") || is(0, "MSET"),
        4 => {
            is(0, "SETEX")
                || is(0, "PSETEX")
                || is(0, "HMSET")
                || (is(0, "SET") && is(3, "KEEPTTL"))
        }
        5 => is(0, "MSET") || (is(0, "SET") && timed()),
        6 => is(0, "HMSET"),
        _ => is(0, "MSET") || is(0, "HMSET"),
    }
}

/// Returns whether a command changes nothing but the key that follows.
fn writes_single_key(verb: &[u8]) -> bool {
    SINGLE_KEY_WRITES
        .binary_search_by(|word| word.as_bytes().cmp(verb))
        .is_ok()
}

/// Returns whether a command changes no value.
fn is_read_only(verb: &[u8]) -> bool {
    READ_ONLY_COMMANDS
        .binary_search_by(|word| word.as_bytes().cmp(verb))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect_of(text: &str) -> CommandEffect {
        classify_command(&CommandWords::parse(text.as_bytes()).unwrap(), true)
    }

    fn written_keys(text: &str) -> Vec<String> {
        match effect_of(text) {
            CommandEffect::Writes(keys) => keys
                .into_iter()
                .map(|key| String::from_utf8(key).unwrap())
                .collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn an_unknown_command_may_change_anything() {
        for text in [
            "EVAL x 0",
            "FLUSHALL",
            "EXEC",
            "SORT a STORE b",
            "COPY a b",
            "NEWCOMMAND a",
            "averyveryverylongcommand",
            "GET",
        ] {
            let expected = if text == "GET" {
                CommandEffect::Nothing
            } else {
                CommandEffect::Anything
            };
            assert_eq!(effect_of(text), expected, "{text}");
        }
        let many: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(
            effect_of(&format!("DEL {}", many.join(" "))),
            CommandEffect::Anything,
            "not all keys were looked at"
        );
        let long = CommandWords::parse(b"*3\r\n$3\r\nSET\r\n$100000\r\nkk").unwrap();
        assert_eq!(
            classify_command(&long, false),
            CommandEffect::Anything,
            "nor all of this one"
        );
    }

    #[test]
    fn the_command_lists_are_sorted() {
        assert!(SINGLE_KEY_WRITES.is_sorted() && READ_ONLY_COMMANDS.is_sorted());
        assert!(
            SINGLE_KEY_WRITES
                .iter()
                .all(|word| READ_ONLY_COMMANDS.binary_search(word).is_err())
        );
    }

    #[test]
    fn keys_of_commands_are_found() {
        assert_eq!(
            effect_of("get a"),
            CommandEffect::Reads(ValueRead {
                key: b"a".to_vec(),
                is_mget: false
            })
        );
        assert_eq!(
            effect_of("MGET a"),
            CommandEffect::Reads(ValueRead {
                key: b"a".to_vec(),
                is_mget: true
            })
        );
        assert_eq!(effect_of("MGET a b"), CommandEffect::Nothing);
        assert_eq!(written_keys("incr a"), ["a"]);
        assert_eq!(written_keys("MSET a 1 b 2"), ["a", "b"]);
        assert_eq!(written_keys("DEL a b"), ["a", "b"]);
        assert_eq!(written_keys("RENAME a b"), ["a", "b"]);
    }

    #[test]
    fn only_commands_with_a_constant_reply_are_answered_early() {
        let words = |text: &'static str| CommandWords::parse(text.as_bytes()).unwrap();
        for text in [
            "SET a b",
            "set a b ex 5",
            "SET a b KEEPTTL",
            "SETEX a 5 b",
            "PSETEX a 5 b",
            "MSET a 1",
            "MSET a 1 b 2 c 3",
            "HMSET a b c",
        ] {
            assert!(has_constant_reply(&words(text)), "{text}");
        }
        for text in [
            "SET a",
            "SET a b NX",
            "SET a b XX",
            "SET a b GET",
            "SET a b EX 5 NX",
            "SETNX a b",
            "INCR a",
            "DEL a",
            "GET a",
            "GETSET a b",
            "SETEX a b",
            "SET a b IFEQ c",
            "MULTI",
        ] {
            assert!(!has_constant_reply(&words(text)), "{text}");
        }
    }
}
