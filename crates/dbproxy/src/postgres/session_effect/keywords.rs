//! Names that decide the effect of a statement.

/// Parameters that the server reports (`GUC_REPORT`, its manual section "Asynchronous Operations")
/// and that every user may set. The client's values are known and restored at its next backend.
pub(in super::super) const RESTORED_SETTINGS: [&str; 7] = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "default_transaction_read_only",
    "IntervalStyle",
    "search_path",
    "TimeZone",
];

/// Locks of the session. Those of the transaction end with it.
pub(super) const SESSION_LOCKS: [&str; 4] = [
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
];

/// Functions that read or leave state of the session.
pub(super) const SESSION_FUNCTIONS: [&str; 4] = ["currval", "lastval", "setseed", "dblink_connect"];

/// First words of statements whose effect ends with the transaction.
pub(super) const STATELESS_STATEMENTS: [&str; 37] = [
    "abort",
    "alter",
    "analyze",
    "begin",
    "checkpoint",
    "close",
    "cluster",
    "comment",
    "commit",
    "copy",
    "create",
    "discard",
    "drop",
    "end",
    "fetch",
    "grant",
    "import",
    "lock",
    "move",
    "notify",
    "reassign",
    "refresh",
    "reindex",
    "release",
    "reset",
    "revoke",
    "rollback",
    "savepoint",
    "security",
    "show",
    "start",
    "truncate",
    "unlisten",
    "vacuum",
    "analyse",
    "deallocate",
    "declare",
];

/// First words of statements that may call functions.
pub(super) const COMPUTING_STATEMENTS: [&str; 10] = [
    "select", "with", "values", "table", "insert", "update", "delete", "merge", "explain", "copy",
];

/// Names that may stand before a parenthesis and leave nothing: keywords, types, and common
/// functions. Sorted for binary search. Any other function may be the tenant's own and do anything.
#[rustfmt::skip]
pub(super) const HARMLESS_CALLS: [&str; 232] = [
    "abs", "age", "all", "and", "any", "any_value", "array", "array_agg", "array_append", "array_length",
    "array_position", "array_remove", "array_to_json", "array_to_string", "as", "ascii", "atan2", "avg", "between",
    "bigint", "bit", "bit_and", "bit_or", "bool_and", "bool_or", "boolean", "btrim", "by", "cardinality", "case",
    "cast", "ceil", "ceiling", "char", "char_length", "character", "chr", "clock_timestamp", "coalesce", "concat",
    "concat_ws", "conflict", "convert_from", "convert_to", "corr", "cos", "count", "cube", "cume_dist",
    "current_database", "current_setting", "current_timestamp", "date", "date_part", "date_trunc", "decimal",
    "decode", "degrees", "dense_rank", "distinct", "div", "do", "else", "encode", "end", "every", "except", "exists",
    "exp", "extract", "factorial", "filter", "first_value", "float", "floor", "format", "from", "gcd",
    "gen_random_uuid", "generate_series", "greatest", "group", "hashtext", "having", "in", "inet", "initcap", "int",
    "integer", "intersect", "interval", "is", "join", "json_agg", "json_array_elements", "json_array_length",
    "json_build_array", "json_build_object", "json_each", "json_object_agg", "json_object_keys", "json_typeof",
    "jsonb_agg", "jsonb_array_elements", "jsonb_array_length", "jsonb_build_array", "jsonb_build_object",
    "jsonb_each", "jsonb_object_agg", "jsonb_object_keys", "jsonb_set", "jsonb_typeof", "lag", "last_value",
    "lateral", "lead", "least", "left", "length", "like", "limit", "ln", "localtimestamp", "log", "lower", "lpad",
    "ltrim", "make_date", "make_interval", "materialized", "max", "md5", "min", "mod", "nextval", "not", "nothing",
    "now", "nth_value", "ntile", "nullif", "num_nonnulls", "numeric", "octet_length", "offset", "on", "or", "order",
    "over", "overlay", "partition", "percent_rank", "pg_advisory_unlock_all", "pg_advisory_xact_lock",
    "pg_backend_pid", "pg_sleep", "pg_try_advisory_xact_lock", "pi", "plainto_tsquery", "position", "power",
    "radians", "random", "rank", "regexp_match", "regexp_matches", "regexp_replace", "repeat", "replace", "returning",
    "reverse", "right", "rollup", "round", "row", "row_number", "row_to_json", "rpad", "rtrim", "select", "serial",
    "set", "set_config", "sets", "sign", "similar", "sin", "some", "split_part", "sqrt", "starts_with", "stddev",
    "string", "string_agg", "string_to_array", "strpos", "substr", "substring", "sum", "tan", "text", "then", "time",
    "timestamp", "timestamptz", "to_char", "to_date", "to_json", "to_jsonb", "to_regclass", "to_timestamp",
    "to_tsquery", "to_tsvector", "translate", "trim", "trunc", "ts_rank", "union", "unnest", "upper", "using", "uuid",
    "values", "varchar", "variance", "varying", "version", "when", "where", "width_bucket", "window", "within",
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_searched_list_is_sorted() {
        assert!(super::HARMLESS_CALLS.is_sorted());
    }
}
