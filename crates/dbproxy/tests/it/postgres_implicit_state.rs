//! State that a client can leave in a session implicitly does not reach the next client.

use nearpath_types::egress::{EgressSpec, PoolingMode};

use crate::fixture::run_local;
use crate::postgres::{as_function, on_postgres, open_fixture};
use crate::postgres_raw::RawClient;
use crate::postgres_server::PostgresServer;

const SETUP: &str = "CREATE SEQUENCE s;
    CREATE FUNCTION sly() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('left.over', 'x', false); RETURN 1; END $$";

/// Statements that leave state implicitly.
const LEFTOVER_STATEMENTS: [&[&str]; 15] = [
    &["SET local.over = 'x'"],
    &["UPDATE pg_settings SET setting = '77MB' WHERE name = 'work_mem'"],
    &["SELECT nextval('s')"],
    &["SET transaction.over = 'x'"],
    &["SET constraints.over = 'x'"],
    &["SET SESSION local.over = 'x'"],
    &["EXPLAIN ANALYZE CREATE TEMP TABLE left_over AS SELECT 1"],
    &["EXPLAIN (ANALYZE, COSTS off) CREATE TEMPORARY TABLE left_over AS SELECT 1"],
    &[
        "BEGIN",
        "SET LOCAL search_path = 'pg_temp'",
        "CREATE TABLE left_over (a int)",
        "COMMIT",
    ],
    &[
        "BEGIN",
        "SELECT set_config('search_path', 'pg_' || 'temp', true)",
        "CREATE TABLE left_over (a int)",
        "COMMIT",
    ],
    &[
        "BEGIN",
        "SET LOCAL search_path = 'pg_temp'",
        "SELECT 1 AS a INTO left_over",
        "COMMIT",
    ],
    &[
        "BEGIN",
        "SET LOCAL search_path = E'\\x70g_temp'",
        "CREATE VIEW left_over AS SELECT 1 AS a",
        "COMMIT",
    ],
    &[
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT sly()",
        "FETCH 1 FROM c",
        "COMMIT",
    ],
    &["CREATE TABLE made AS SELECT sly() AS a", "DROP TABLE made"],
    &[
        "CREATE MATERIALIZED VIEW made AS SELECT sly() AS a",
        "DROP MATERIALIZED VIEW made",
    ],
];

/// Returns the state that the next client finds.
async fn find_leftovers(client: &mut RawClient) -> Vec<String> {
    let mut found = Vec::new();
    for name in [
        "local.over",
        "transaction.over",
        "constraints.over",
        "left.over",
    ] {
        let value = client
            .query(&format!("SELECT current_setting('{name}', true)"))
            .await
            .unwrap();
        if !["null", ""].contains(&value[0].as_str()) {
            found.push(format!("{name} = {value:?}"));
        }
    }
    if client.query("SHOW work_mem").await.unwrap() != ["4MB"] {
        found.push("a setting".into());
    }
    if client.query("SELECT lastval()").await.is_ok() {
        found.push("a number of a sequence".into());
    }
    if client.query("SELECT a FROM left_over").await.is_ok()
        || client.query("TABLE left_over").await.is_ok()
    {
        found.push("a temporary table".into());
    }
    found
}

#[test]
fn implicit_session_state_does_not_reach_the_next_client() {
    on_postgres!(&[], |server| {
        server.sql(SETUP).await;
        let fixture = open_fixture(EgressSpec {
            max: 1,
            ..as_function(server.at, PoolingMode::Transaction)
        })
        .await;
        let mut leaks = Vec::new();
        for (turn, way) in LEFTOVER_STATEMENTS.iter().enumerate() {
            let mut first = RawClient::new(fixture.at).await;
            for order in *way {
                first
                    .query(order)
                    .await
                    .unwrap_or_else(|error| panic!("{order}: {error}"));
            }
            first.leave(true).await;
            fixture.wait_served(2 * turn + 1).await;
            let mut second = RawClient::new(fixture.at).await;
            let found = find_leftovers(&mut second).await;
            if !found.is_empty() {
                leaks.push(format!("{way:?}: {found:?}"));
            }
            second.query("DISCARD ALL").await.unwrap();
            second.leave(true).await;
            fixture.wait_served(2 * turn + 2).await;
        }
        assert!(leaks.is_empty(), "{leaks:#?}");
    });
}
