//! Effect of a SQL text on its session.

use super::keywords::{
    COMPUTING_STATEMENTS, HARMLESS_CALLS, RESTORED_SETTINGS, SESSION_FUNCTIONS, SESSION_LOCKS,
    STATELESS_STATEMENTS,
};
use super::lexer::{SqlLexer, SqlToken};

/// State that a text leaves in its session.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(in super::super) struct PostgresSessionEffect {
    /// Reason why the client has to keep its backend.
    pub(in super::super) pin: Option<&'static str>,
    /// The text creates objects that may be temporary, or calls unknown functions. The backend is
    /// cleaned before it serves another client.
    pub(in super::super) needs_cleaning: bool,
    /// The text is a single `DEALLOCATE` of this name.
    pub(in super::super) deallocates: Option<Vec<u8>>,
}

/// Classifies all statements in `text`. `reported` tells whether the server reports a parameter.
pub(in super::super) fn classify_text(
    text: &[u8],
    reported: impl Fn(&str) -> bool,
) -> PostgresSessionEffect {
    let mut effect = PostgresSessionEffect::default();
    let Ok(tokens) = SqlLexer::new(text).collect::<Result<Vec<_>, _>>() else {
        effect.pin = Some("unclear text");
        return effect;
    };
    let statements: Vec<_> = tokens
        .split(|token| *token == SqlToken::Symbol(b';'))
        .filter(|statement| !statement.is_empty())
        .collect();
    for statement in &statements {
        // The first reason counts; later statements can only leave more.
        effect.pin = effect.pin.or_else(|| pin_reason(statement, &reported));
        effect.needs_cleaning |= may_leave_state(statement);
    }
    if let [[first, rest @ ..]] = statements[..]
        && first.is("deallocate")
    {
        effect.deallocates = deallocated_name(rest);
    }
    effect
}

/// Returns whether a text may ask for a number that its session has drawn from a sequence.
pub(in super::super) fn names_sequence_value(text: &[u8]) -> bool {
    // Searched in the raw text: a hit within a literal only costs a `DISCARD SEQUENCES`.
    let named = |word: &[u8]| {
        word.eq_ignore_ascii_case(b"currval") || word.eq_ignore_ascii_case(b"lastval")
    };
    text.windows(7).any(named)
}

fn pin_reason(statement: &[SqlToken<'_>], reported: impl Fn(&str) -> bool) -> Option<&'static str> {
    pin_anywhere(statement).or_else(|| pin_by_start(statement, reported))
}

/// Returns why a statement pins by its first words.
fn pin_by_start(
    statement: &[SqlToken<'_>],
    reported: impl Fn(&str) -> bool,
) -> Option<&'static str> {
    let is = |at: usize, name| {
        statement
            .get(at)
            .is_some_and(|token: &SqlToken<'_>| token.is(name))
    };
    // A statement may begin with a parenthesis, as in `(SELECT 1) UNION SELECT 2`.
    let SqlToken::Word(first) = statement[0] else {
        return (statement[0] != SqlToken::Symbol(b'(')).then_some("unknown statement");
    };
    match first.to_ascii_lowercase().as_slice() {
        b"set" => pin_of_set(&statement[1..], reported),
        b"listen" => Some("LISTEN"),
        b"create" if (1..5).any(|at| is(at, "temp") || is(at, "temporary")) => {
            Some("temporary table")
        }
        b"declare"
            if statement
                .windows(2)
                .any(|two| two[0].is("with") && two[1].is("hold")) =>
        {
            Some("cursor WITH HOLD")
        }
        // A prepared transaction is no longer the session's.
        b"prepare" if is(1, "transaction") => None,
        b"prepare" | b"execute" => Some("PREPARE"),
        b"load" => Some("LOAD"),
        b"do" => Some("DO"),
        b"call" => Some("CALL"),
        first
            if is_one_of(first, &STATELESS_STATEMENTS)
                || is_one_of(first, &COMPUTING_STATEMENTS) =>
        {
            None
        }
        // Unknown commands may belong to newer servers or to extensions.
        _ => Some("unknown statement"),
    }
}

/// Returns why a `SET` pins, by the words after it.
fn pin_of_set(rest: &[SqlToken<'_>], reported: impl Fn(&str) -> bool) -> Option<&'static str> {
    let rest = match rest {
        [session, characteristics, ..]
            if session.is("session") && characteristics.is("characteristics") =>
        {
            return Some("SET SESSION CHARACTERISTICS");
        }
        // `SET SESSION a` means `SET a`.
        [session, rest @ ..] if session.is("session") => rest,
        rest => rest,
    };
    let [first, after @ ..] = rest else {
        return None;
    };
    // A qualified name (`SET a.b`) is a parameter of an extension or a custom one, even `local.b`.
    if after.first() == Some(&SqlToken::Symbol(b'.')) {
        return Some("SET");
    }
    // These end with the transaction.
    if ["local", "transaction", "constraints"]
        .iter()
        .any(|name| first.is(name))
    {
        return None;
    }
    let name = match first {
        time if time.is("time") => "TimeZone",
        names if names.is("names") => "client_encoding",
        schema if schema.is("schema") => "search_path",
        other => RESTORED_SETTINGS
            .into_iter()
            .find(|name| other.is(name))
            .unwrap_or_default(),
    };
    // A reported parameter is restored at the next backend, so it does not pin.
    (name.is_empty() || !reported(name)).then_some("SET")
}

/// Returns why a statement pins by a name anywhere in it.
fn pin_anywhere(statement: &[SqlToken<'_>]) -> Option<&'static str> {
    statement.iter().enumerate().find_map(|(at, token)| {
        let (SqlToken::Word(word) | SqlToken::Quoted(word)) = token else {
            return None;
        };
        let next = |ahead: usize| statement.get(at + ahead);
        let called = next(1) == Some(&SqlToken::Symbol(b'('));
        // Also without a call: the function may be run through a cast to `regproc` or a default.
        if SESSION_LOCKS.iter().any(|name| token.is(name)) {
            return Some("advisory lock");
        }
        if called && SESSION_FUNCTIONS.iter().any(|name| token.is(name)) {
            return Some("session function");
        }
        let sets = token.is("set_config") && !is_transaction_local(&statement[at + 1..]);
        // An update of this view sets parameters.
        if sets || token.is("pg_settings") && statement.iter().any(|other| other.is("update")) {
            return Some("SET");
        }
        let temporary = token.is("into")
            && (1..3).any(|by| next(by).is_some_and(|it| it.is("temp") || it.is("temporary")));
        // `pg_temp` and the numbered `pg_temp_3` are schemas of temporary objects.
        (temporary
            || word
                .get(..7)
                .is_some_and(|start| start.eq_ignore_ascii_case(b"pg_temp")))
        .then_some("temporary table")
    })
}

/// Returns whether the last argument of `set_config(…)` is `true`: the setting ends with the
/// transaction.
fn is_transaction_local(arguments: &[SqlToken<'_>]) -> bool {
    let mut depth = 0;
    let end = arguments.iter().position(|token| {
        depth += match token {
            SqlToken::Symbol(b'(') => 1,
            SqlToken::Symbol(b')') => -1,
            _ => 0,
        };
        depth == 0
    });
    end.is_some_and(|end| {
        // Anything but the literal may evaluate to false.
        end >= 2
            && arguments[end - 2] == SqlToken::Symbol(b',')
            && matches!(arguments[end - 1], last if last.is("true"))
    })
}

/// Returns whether a statement may create temporary objects, or calls an unknown function.
fn may_leave_state(statement: &[SqlToken<'_>]) -> bool {
    creates_objects(statement)
        || statement.windows(2).enumerate().any(|(at, two)| {
            let call = matches!(
                two,
                [
                    SqlToken::Word(_) | SqlToken::Quoted(_),
                    SqlToken::Symbol(b'(')
                ]
            );
            call && !is_harmless(&two[0]) && !names_table(&statement[..at])
        })
}

/// Returns whether a statement creates objects: `CREATE`, `EXPLAIN ANALYZE CREATE … AS`, `SELECT …
/// INTO`. They are temporary if `search_path` begins with `pg_temp`, which a transaction can set
/// unseen.
fn creates_objects(statement: &[SqlToken<'_>]) -> bool {
    let begins = |name| statement[0].is(name);
    let creates =
        begins("create") || begins("explain") && statement.iter().any(|token| token.is("create"));
    let selects_into =
        |two: &[SqlToken<'_>]| two[1].is("into") && !two[0].is("insert") && !two[0].is("merge");
    creates || statement.windows(2).any(selects_into)
}

fn is_harmless(token: &SqlToken<'_>) -> bool {
    // A quoted name is never a keyword, and may be a function in another schema.
    let SqlToken::Word(word) = token else {
        return false;
    };
    let Ok(word) = std::str::from_utf8(word).map(str::to_ascii_lowercase) else {
        return false;
    };
    HARMLESS_CALLS.binary_search(&word.as_str()).is_ok()
}

/// Returns whether a name after these tokens is a table: `INSERT INTO a.b (…)`, `COPY b (…)`, `WITH
/// b (…)`.
fn names_table(before: &[SqlToken<'_>]) -> bool {
    let qualified = before.ends_with(&[SqlToken::Symbol(b'.')]) && before.len() >= 2;
    let before = if qualified {
        &before[..before.len() - 2]
    } else {
        before
    };
    before.last().is_some_and(|last| {
        ["into", "copy", "with", "recursive"]
            .iter()
            .any(|word| last.is(word))
    })
}

/// Returns the name in `DEALLOCATE [PREPARE] name`; `ALL` is none.
fn deallocated_name(rest: &[SqlToken<'_>]) -> Option<Vec<u8>> {
    match rest {
        [prepare, name] if prepare.is("prepare") => deallocated_name(std::slice::from_ref(name)),
        // Unquoted names are folded to lower case by the server.
        [SqlToken::Word(word)] => Some(word.to_ascii_lowercase()).filter(|word| word != b"all"),
        [SqlToken::Quoted(name)] => Some(
            String::from_utf8_lossy(name)
                .replace("\"\"", "\"")
                .into_bytes(),
        ),
        _ => None,
    }
}

fn is_one_of(word: &[u8], list: &[&str]) -> bool {
    list.iter()
        .any(|one| word.eq_ignore_ascii_case(one.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn effect_of(text: &str) -> PostgresSessionEffect {
        classify_text(text.as_bytes(), |name| name != "search_path")
    }

    #[test]
    fn statements_that_end_with_the_transaction_do_not_pin() {
        for text in [
            "",
            ";;",
            "SELECT 1",
            "(SELECT 1) UNION SELECT 2",
            "select temp from weather where local = 'pg_advisory_lock(1)'",
            "INSERT INTO shop.goods (id, name) VALUES ($1, lower($2)) ON CONFLICT (id) DO NOTHING",
            "WITH a (x) AS (SELECT count(*) FROM b) SELECT x FROM a",
            "BEGIN; SET LOCAL work_mem = '64MB'; SET TRANSACTION READ ONLY; COMMIT",
            "SET TIME ZONE 'UTC'; SET SESSION datestyle = iso; SET NAMES 'utf8'; SET application_name TO x",
            "SELECT set_config('app.user', $1, true)",
            "SELECT pg_advisory_xact_lock(1)",
            "DECLARE c CURSOR FOR SELECT 1; FETCH 5 FROM c; CLOSE c",
            "ALTER TABLE a ADD b varchar(10); LOCK TABLE a; COPY a (id) FROM STDIN; PREPARE TRANSACTION 'x'",
            "MERGE INTO a USING b ON true WHEN MATCHED THEN DELETE",
            "-- LISTEN x\nSELECT $$ LISTEN y; $$ /* SET z = 1 */",
            "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;",
        ] {
            assert_eq!(effect_of(text), PostgresSessionEffect::default(), "{text}");
        }
    }

    #[test]
    fn session_state_pins_with_its_reason() {
        for (text, why) in [
            ("LISTEN x", "LISTEN"),
            ("SELECT 1; listen x", "LISTEN"),
            ("SELECT pg_advisory_lock(1)", "advisory lock"),
            (
                "SELECT pg_catalog.\"pg_try_advisory_lock\" (1)",
                "advisory lock",
            ),
            ("SET work_mem = '64MB'", "SET"),
            ("SET app.user = 'x'", "SET"),
            ("SET search_path = a", "SET"),
            ("SET standard_conforming_strings = off", "SET"),
            ("SET SESSION AUTHORIZATION x", "SET"),
            ("SET ROLE x", "SET"),
            ("SET local.a = 'x'", "SET"),
            ("SET SESSION transaction.a TO 'x'", "SET"),
            (
                "UPDATE pg_settings SET setting = '1MB' WHERE name = 'work_mem'",
                "SET",
            ),
            (
                "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
                "SET SESSION CHARACTERISTICS",
            ),
            ("SELECT set_config('a.b', 'c', false)", "SET"),
            ("SELECT set_config('a.b', f(true), $1), true", "SET"),
            ("CREATE TEMP TABLE a (b int)", "temporary table"),
            (
                "create or replace local temporary view a as select 1",
                "temporary table",
            ),
            ("SELECT 1 INTO TEMP a", "temporary table"),
            ("CREATE TABLE pg_temp.a (b int)", "temporary table"),
            (
                "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
                "cursor WITH HOLD",
            ),
            ("PREPARE a AS SELECT 1", "PREPARE"),
            ("EXECUTE a", "PREPARE"),
            ("DO $$ BEGIN END $$", "DO"),
            ("CALL a()", "CALL"),
            ("LOAD 'x'", "LOAD"),
            ("SELECT currval('s')", "session function"),
            ("FROBNICATE", "unknown statement"),
            ("'a", "unclear text"),
        ] {
            assert_eq!(effect_of(text).pin, Some(why), "{text}");
        }
    }

    #[test]
    fn created_objects_and_unknown_functions_need_cleaning() {
        for text in [
            "SELECT mine(1)",
            "SELECT * FROM shop.mine(1)",
            "SELECT \"count\"(1)",
            "UPDATE a SET b = mine()",
            "DECLARE c CURSOR FOR SELECT mine()",
            "ALTER TABLE a ADD b int DEFAULT mine()",
            "CREATE TABLE a (id int)",
            "EXPLAIN ANALYZE CREATE TEMP TABLE a AS SELECT 1",
            "SELECT 1 AS a INTO b",
        ] {
            let effect = effect_of(text);
            assert!(effect.needs_cleaning && effect.pin.is_none(), "{text}");
        }
    }

    #[test]
    fn a_single_deallocate_names_its_statement() {
        let freed = |text| effect_of(text).deallocates;
        assert_eq!(freed("DEALLOCATE _pg3_0"), Some(b"_pg3_0".to_vec()));
        assert_eq!(
            freed("deallocate prepare \"A\"\"b\";"),
            Some(b"A\"b".to_vec())
        );
        assert_eq!(freed("DEALLOCATE ALL"), None);
        assert_eq!(freed("DEALLOCATE a; SELECT 1"), None);
    }

    #[test]
    fn reading_a_sequence_value_is_detected() {
        assert!(
            names_sequence_value(b"SELECT pg_catalog.\"lastval\"()")
                && names_sequence_value(b"SELECT CurrVal('s')")
        );
        assert!(!names_sequence_value(b"SELECT nextval('s')") && !names_sequence_value(b""));
    }

    proptest! {
        /// A statement is detected whatever precedes it and however it is written.
        #[test]
        fn nothing_hides_a_listen(
            before in prop::sample::select(vec![
                "SELECT 1", "SELECT 'a;'", "SELECT $a$ ; $a$", "/* ; */ SELECT 2", "SELECT \"a;\"", "SELECT E'\\';'", "",
            ]),
            blank in "[ \t\n]{0,3}(/\\* x \\*/)?",
            upper: bool,
        ) {
            let listen = if upper { "LISTEN" } else { "listen" };
            prop_assert_eq!(effect_of(&format!("{before};{blank}{listen} x")).pin, Some("LISTEN"));
        }

        #[test]
        fn any_text_is_classified(text: Vec<u8>) {
            classify_text(&text, |_| true);
        }
    }
}
