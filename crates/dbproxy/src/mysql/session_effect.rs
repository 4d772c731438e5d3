//! What a statement leaves on its connection, as far as its text tells. What is not known to leave nothing is taken to leave something.

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MysqlSessionEffect {
    /// A setting that can be made again on another connection.
    Setting,
    /// Nothing that the server does not tell of.
    Nothing,
    /// Something, by a name.
    Pins(&'static str),
}

/// Longest setting that is made again.
const MAX_SETTING_BYTES: usize = 512;

/// Statements that begin so leave nothing by themselves.
const HARMLESS_STATEMENTS: &[&str] = &[
    "select",
    "insert",
    "update",
    "delete",
    "replace",
    "begin",
    "start",
    "commit",
    "rollback",
    "savepoint",
    "release",
    "show",
    "explain",
    "describe",
    "desc",
    "with",
    "values",
    "do",
    "create",
    "alter",
    "drop",
    "truncate",
    "rename",
    "analyze",
    "optimize",
    "check",
];

/// Words that ask for what an earlier statement left, or leave something.
const SESSION_WORDS: &[&str] = &[
    "last_insert_id",
    "identity",
    "warning",
    "error",
    "diagnostics",
    "found_rows",
    "row_count",
    "_lock",
    "temporary",
    "connection_id",
    "lastval",
    "previous value",
    "nextval",
    "next value",
    "currval",
    "sequence",
    "procedure",
    "pseudo",
    "profil",
];

/// Settings that are of one statement, of the server, or change how texts are read.
const UNREPEATABLE_SETTINGS: &[&str] = &[
    "global",
    "persist",
    "password",
    "transaction",
    "role",
    "statement",
    "sql_mode",
    "insert_id",
    "timestamp",
    "rand_seed",
    "pseudo",
    "log_bin",
    "gtid",
    "(",
];

/// What may stand before a bracket and leaves nothing: functions of the server's, and words of the language. In order.
#[rustfmt::skip]
const KNOWN_FUNCTIONS: &[&str] = &[
    "abs", "all", "and", "any", "any_value", "as", "ascii", "avg", "between", "bigint", "binary", "bit", "bit_and", "bit_length", "bit_or", "bit_xor",
    "by", "cast", "ceil", "ceiling", "char", "char_length", "character_length", "coalesce", "collate", "concat", "concat_ws", "conv", "convert",
    "count", "cume_dist", "curdate", "current_date", "current_time", "current_timestamp", "curtime", "database", "date", "date_add", "date_format",
    "date_sub", "datediff", "datetime", "day", "dayname", "dayofmonth", "dayofweek", "dayofyear", "decimal", "dense_rank", "distinct", "div",
    "double", "else", "elt", "exists", "exp", "extract", "field", "find_in_set", "first_value", "float", "floor", "format", "from", "from_base64",
    "from_days", "from_unixtime", "greatest", "group_concat", "having", "hex", "hour", "if", "ifnull", "in", "insert", "instr", "int", "integer",
    "interval", "is", "isnull", "join", "json_array", "json_arrayagg", "json_contains", "json_contains_path", "json_depth", "json_extract",
    "json_insert", "json_keys", "json_length", "json_merge_patch", "json_merge_preserve", "json_object", "json_objectagg", "json_quote",
    "json_remove", "json_replace", "json_search", "json_set", "json_type", "json_unquote", "json_valid", "json_value", "key", "lag", "last_value",
    "lcase", "lead", "least", "left", "length", "like", "ln", "locate", "log", "log10", "log2", "lower", "lpad", "ltrim", "make_set", "makedate",
    "maketime", "max", "md5", "microsecond", "mid", "min", "minute", "mod", "month", "monthname", "not", "now", "nth_value", "ntile", "nullif", "nvl",
    "oct", "octet_length", "on", "or", "ord", "over", "partition", "percent_rank", "period_add", "period_diff", "pi", "position", "pow", "power",
    "primary", "quarter", "quote", "radians", "rand", "rank", "regexp", "regexp_instr", "regexp_replace", "regexp_substr", "repeat", "replace",
    "reverse", "right", "rlike", "round", "row", "row_number", "rpad", "rtrim", "schema", "sec_to_time", "second", "select", "set", "sha", "sha1",
    "sha2", "sign", "sin", "sleep", "smallint", "soundex", "space", "sqrt", "std", "stddev", "str_to_date", "strcmp", "subdate", "substr",
    "substring", "substring_index", "subtime", "sum", "sysdate", "table", "tan", "then", "time", "time_format", "time_to_sec", "timediff",
    "timestamp", "timestampadd", "timestampdiff", "tinyint", "to_base64", "to_days", "to_seconds", "trim", "truncate", "ucase", "unhex", "union",
    "unique", "unix_timestamp", "upper", "user", "using", "utc_date", "utc_time", "utc_timestamp", "uuid", "values", "varbinary", "varchar",
    "variance", "version", "week", "weekday", "weekofyear", "when", "where", "xor", "year", "yearweek",
];

/// After these comes the name of a table or an index, whose columns may follow in brackets.
const TABLE_NAME_PREFIXES: &[&[u8]] = &[
    b"into",
    b"table",
    b"references",
    b"index",
    b"key",
    b"as",
    b"with",
    b"recursive",
    b"view",
    b"exists",
];

/// Of one statement.
pub fn classify_statement(text: &[u8]) -> MysqlSessionEffect {
    let Some(bare) = normalize_statement(text) else {
        return MysqlSessionEffect::Pins("a statement that is not understood");
    };
    let bare = bare.trim_ascii_start();
    let bare = bare.trim_ascii_end();
    let bare = bare.strip_suffix(b";").unwrap_or(bare);
    if bare.contains(&b';') {
        return MysqlSessionEffect::Pins("several statements");
    }
    let end = bare
        .iter()
        .position(|byte| !byte.is_ascii_alphabetic())
        .unwrap_or(bare.len());
    let (first, has) = (&bare[..end], |word: &&str| {
        memchr::memmem::find(bare, word.as_bytes()).is_some()
    });
    match first {
        b"set"
            if text.len() <= MAX_SETTING_BYTES
                && !bare.contains(&b'@')
                && !UNREPEATABLE_SETTINGS.iter().any(has) =>
        {
            MysqlSessionEffect::Setting
        }
        b"set" => MysqlSessionEffect::Pins("SET"),
        _ if !HARMLESS_STATEMENTS
            .iter()
            .any(|word| word.as_bytes() == first) =>
        {
            MysqlSessionEffect::Pins("an unusual statement")
        }
        _ if calls_unknown_function(bare) => {
            MysqlSessionEffect::Pins("a function that is not known")
        }
        _ if names_variable(bare) => MysqlSessionEffect::Pins("a variable"),
        _ if SESSION_WORDS.iter().any(has) => MysqlSessionEffect::Pins("what a statement leaves"),
        _ => MysqlSessionEffect::Nothing,
    }
}

/// Whether a function is called that may be of the tenant's own: such a one may do anything.
fn calls_unknown_function(bare: &[u8]) -> bool {
    let word = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.') || !byte.is_ascii()
    };
    let (mut last, mut before): (&[u8], &[u8]) = (b"", b"");
    let mut rest = bare;
    while let Some(first) = rest.first() {
        let end = rest
            .iter()
            .position(|byte| !word(byte))
            .unwrap_or(rest.len());
        if end > 0 {
            (before, last) = (last, &rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let known = |name: &[u8]| {
            KNOWN_FUNCTIONS
                .binary_search_by(|other| other.as_bytes().cmp(name))
                .is_ok()
        };
        if *first == b'('
            && !last.is_empty()
            && !known(last)
            && !TABLE_NAME_PREFIXES.contains(&before)
        {
            return true;
        }
        if !first.is_ascii_whitespace() {
            (last, before) = (b"", b"");
        }
        rest = &rest[1..];
    }
    false
}

/// Whether `@name` is in it, which `@@name` is not.
fn names_variable(bare: &[u8]) -> bool {
    let mut at = 0;
    while let Some(next) = memchr::memchr(b'@', &bare[at..]) {
        at += next + 1;
        if bare.get(at) != Some(&b'@') {
            return true;
        }
        at += 1;
    }
    false
}

/// A statement in small letters, without comments and without what is between `'`. Names may be between other quotes, also those of functions, so that
/// stays. `NoConnection`: it depends on the server's settings how it is read, or it does not end.
fn normalize_statement(text: &[u8]) -> Option<Vec<u8>> {
    // In encodings like GBK and SJIS a letter may end in one of these.
    let ends_a_letter = |two: &[u8]| !two[0].is_ascii() && two[1] == b'`';
    if text.contains(&b'\\') || text.windows(2).any(ends_a_letter) {
        return None;
    }
    let (mut bare, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'\'' => &after[memchr::memchr(b'\'', after)? + 1..],
            b'"' | b'`' => {
                let end = memchr::memchr(*first, after)?;
                bare.extend(after[..end].to_ascii_lowercase());
                &after[end + 1..]
            }
            b'#' => &after[memchr::memchr(b'\n', after)? + 1..],
            b'-' if after.starts_with(b"-") => match after.get(1) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => &after[memchr::memchr(b'\n', after)? + 1..],
                // To MySQL these are two signs, to others a comment.
                _ => return None,
            },
            // What begins with `!` is executed.
            b'/' if after.starts_with(b"*") => {
                let inner = &after[1..];
                if matches!(inner.first(), Some(b'!' | b'M' | b'+')) {
                    return None;
                }
                bare.push(b' ');
                &inner[memchr::memmem::find(inner, b"*/")? + 2..]
            }
            other => {
                bare.push(other.to_ascii_lowercase());
                after
            }
        };
    }
    Some(bare)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_functions_are_sorted() {
        assert!(KNOWN_FUNCTIONS.is_sorted());
    }

    #[test]
    fn statements_are_classified_by_their_text() {
        for text in [
            "SELECT 1",
            "select 'a@b.c', @@version;",
            " /* who */ INSERT INTO t VALUES ('it''s')",
            "BEGIN",
            "START TRANSACTION",
            "-- x\nSELECT 2",
            "UPDATE t SET a = 1",
        ] {
            assert_eq!(
                classify_statement(text.as_bytes()),
                MysqlSessionEffect::Nothing,
                "{text}"
            );
        }
        for text in [
            "SET NAMES utf8mb4",
            "set autocommit=0;",
            "SET SESSION time_zone = '+00:00', lock_wait_timeout=3",
            "SET character_set_results = NULL",
        ] {
            assert_eq!(
                classify_statement(text.as_bytes()),
                MysqlSessionEffect::Setting,
                "{text}"
            );
        }
        for text in [
            "SET @a = 1",
            "SET GLOBAL x = 1",
            "SET TRANSACTION READ ONLY",
            "SET sql_mode='ANSI_QUOTES'",
            "SET x = (SELECT 1)",
            "SELECT @a",
            "SELECT `get_lock`('x', 1)",
            "SELECT 1; SET NAMES x",
            "CREATE TEMPORARY TABLE t (a INT)",
            "LOCK TABLES t READ",
            "USE x",
            "PREPARE s FROM 'x'",
            "CALL p()",
            "HANDLER t OPEN",
            "SELECT LAST_INSERT_ID()",
            "SHOW WARNINGS",
            "SELECT mine()",
            "SELECT shop.mine (1)",
            "SELECT `mine`(1)",
            "SELECT (1), mine(2)",
            "/*!50000 LOCK TABLES t READ */",
            "SELECT '\\', GET_LOCK('x',1) #'",
            "SELECT 'open",
            "XA BEGIN 'x'",
            "",
            "--",
        ] {
            assert!(
                matches!(
                    classify_statement(text.as_bytes()),
                    MysqlSessionEffect::Pins(_)
                ),
                "{text}"
            );
        }
    }

    #[test]
    fn a_multibyte_character_ending_in_a_quote_hides_nothing() {
        let text = b"SELECT 1 AS \x81`, '\x81`', GET_LOCK(0x61, 1), '', 1 AS \x81`, '\x81`'";
        assert!(matches!(
            classify_statement(text),
            MysqlSessionEffect::Pins(_)
        ));
        assert_eq!(
            classify_statement("SELECT `größe` FROM t".as_bytes()),
            MysqlSessionEffect::Nothing
        );
    }

    proptest! {
        #[test]
        fn nothing_hides_a_lock(before in "[a-z '\"`#/*\\\\;@\n-]{0,20}") {
            let text = format!("SELECT {before} GET_LOCK('x', 1)");
            // A literal may hide it, nothing else.
            if !before.contains('\'') {
                prop_assert!(matches!(classify_statement(text.as_bytes()), MysqlSessionEffect::Pins(_)), "{text}");
            }
        }
    }
}
