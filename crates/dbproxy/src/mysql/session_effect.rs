//! Effects of statements on their session, by their text. A statement that is not known to leave
//! nothing counts as leaving state.

/// Effect of a statement on its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MysqlSessionEffect {
    /// A setting that another connection can repeat.
    Setting,
    /// The statement leaves nothing that the server does not report.
    Nothing,
    /// The statement leaves state, or may; the name is the reason of the pin.
    Pins(&'static str),
}

/// The longest setting that is repeated.
const MAX_SETTING_BYTES: usize = 512;

/// First words of statements that leave nothing by themselves.
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

/// Words that read the state of an earlier statement, or that leave state.
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

/// Settings of one statement or of the whole server, and settings that change how texts are read.
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

/// Names that may stand before a parenthesis and leave nothing: functions of the server, and
/// keywords. Sorted for binary search.
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

/// Words before the name of a table or an index, whose columns may follow in parentheses.
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

/// Classifies one statement.
pub fn classify_statement(text: &[u8]) -> MysqlSessionEffect {
    let Some(normalized) = normalize_statement(text) else {
        return MysqlSessionEffect::Pins("a statement that is not understood");
    };
    let normalized = normalized.trim_ascii_start();
    let normalized = normalized.trim_ascii_end();
    let normalized = normalized.strip_suffix(b";").unwrap_or(normalized);
    // The text after the semicolon is another statement, whose effect the first word does not show.
    if normalized.contains(&b';') {
        return MysqlSessionEffect::Pins("several statements");
    }
    let end = normalized
        .iter()
        .position(|byte| !byte.is_ascii_alphabetic())
        .unwrap_or(normalized.len());
    let (first, has) = (&normalized[..end], |word: &&str| {
        memchr::memmem::find(normalized, word.as_bytes()).is_some()
    });
    match first {
        // A function call in a setting may have any effect; `UNREPEATABLE_SETTINGS` holds the
        // parenthesis for that.
        b"set"
            if text.len() <= MAX_SETTING_BYTES
                && !normalized.contains(&b'@')
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
        _ if calls_unknown_function(normalized) => {
            MysqlSessionEffect::Pins("a function that is not known")
        }
        _ if names_variable(normalized) => MysqlSessionEffect::Pins("a variable"),
        _ if SESSION_WORDS.iter().any(has) => MysqlSessionEffect::Pins("what a statement leaves"),
        _ => MysqlSessionEffect::Nothing,
    }
}

/// Returns whether the text may call a function of the tenant's own: such a function may do
/// anything.
fn calls_unknown_function(normalized: &[u8]) -> bool {
    let word = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.') || !byte.is_ascii()
    };
    let (mut last, mut before): (&[u8], &[u8]) = (b"", b"");
    let mut rest = normalized;
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
        // Between `INTO`, `TABLE` and the like and a parenthesis stands a name, not a function.
        if *first == b'('
            && !last.is_empty()
            && !known(last)
            && !TABLE_NAME_PREFIXES.contains(&before)
        {
            return true;
        }
        // Any other sign separates the words: `(1), mine(2)` must not look like a table name.
        if !first.is_ascii_whitespace() {
            (last, before) = (b"", b"");
        }
        rest = &rest[1..];
    }
    false
}

/// Returns whether the text contains `@name`; `@@name` is a system variable.
fn names_variable(normalized: &[u8]) -> bool {
    let mut at = 0;
    while let Some(next) = memchr::memchr(b'@', &normalized[at..]) {
        at += next + 1;
        if normalized.get(at) != Some(&b'@') {
            return true;
        }
        at += 1;
    }
    false
}

/// Returns the statement in lower case, without comments and without the content of `'…'`. The
/// content of other quotes stays: they may quote the name of a function. `None`: the reading
/// depends on the server's settings, or the text does not end.
fn normalize_statement(text: &[u8]) -> Option<Vec<u8>> {
    // In GBK and SJIS the second byte of a character may be one of these.
    let ends_a_letter = |two: &[u8]| !two[0].is_ascii() && two[1] == b'`';
    // A backslash escapes a quote or not, depending on `NO_BACKSLASH_ESCAPES`.
    if text.contains(&b'\\') || text.windows(2).any(ends_a_letter) {
        return None;
    }
    let (mut normalized, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'\'' => &after[memchr::memchr(b'\'', after)? + 1..],
            b'"' | b'`' => {
                let end = memchr::memchr(*first, after)?;
                normalized.extend(after[..end].to_ascii_lowercase());
                &after[end + 1..]
            }
            b'#' => &after[memchr::memchr(b'\n', after)? + 1..],
            b'-' if after.starts_with(b"-") => match after.get(1) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => &after[memchr::memchr(b'\n', after)? + 1..],
                // MySQL reads two minus signs here, other servers a comment.
                _ => return None,
            },
            // MySQL executes the content of comments that begin with `!`, MariaDB also with `M!`;
            // `+` holds optimizer hints.
            b'/' if after.starts_with(b"*") => {
                let inner = &after[1..];
                if matches!(inner.first(), Some(b'!' | b'M' | b'+')) {
                    return None;
                }
                // A comment separates words as a blank does.
                normalized.push(b' ');
                &inner[memchr::memmem::find(inner, b"*/")? + 2..]
            }
            other => {
                normalized.push(other.to_ascii_lowercase());
                after
            }
        };
    }
    Some(normalized)
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
            // Only a string literal may hide it.
            if !before.contains('\'') {
                prop_assert!(matches!(classify_statement(text.as_bytes()), MysqlSessionEffect::Pins(_)), "{text}");
            }
        }
    }
}
