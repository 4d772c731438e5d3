//! Parameters that clients get at their login, after the server has changed them.

use nearpath_types::egress::PoolingMode;

use crate::fixture::run_local;
use crate::postgres::{as_function, on_postgres, on_postgres_with, open_fixture};
use crate::postgres_raw::RawClient;
use crate::postgres_server::PostgresServer;

const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

#[test]
fn a_new_session_tells_its_parameters_to_later_clients() {
    on_postgres!(&["timezone=UTC"], |server| {
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        let mut first = RawClient::new(fixture.at).await;
        assert_eq!(first.parameters["TimeZone"], "UTC");
        first.query("BEGIN; SELECT 1").await.unwrap();
        server
            .sql("ALTER ROLE postgres SET timezone = 'Asia/Tokyo'")
            .await;
        // The first session is in use, so this client gets a new one.
        let mut second = RawClient::new(fixture.at).await;
        second.query("SELECT 1").await.unwrap();
        let mut third = RawClient::new(fixture.at).await;
        assert_eq!(third.parameters["TimeZone"], "Asia/Tokyo");
        assert_eq!(third.query("SHOW timezone").await.unwrap(), ["Asia/Tokyo"]);
        // A client keeps what it was told, as in a session of its own.
        assert_eq!(second.query("SHOW timezone").await.unwrap(), ["UTC"]);
    });
}

#[test]
fn parameters_are_forgotten_with_the_last_session() {
    on_postgres!(&["timezone=UTC"], |server| {
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            server.sql("ALTER ROLE postgres RESET timezone").await;
            let fixture = open_fixture(as_function(server.at, mode)).await;
            let mut first = RawClient::new(fixture.at).await;
            assert_eq!(first.query("SHOW timezone").await.unwrap(), ["UTC"]);
            first.leave(true).await;
            fixture.wait_served(1).await;
            server
                .sql("ALTER ROLE postgres SET timezone = 'Asia/Tokyo'")
                .await;
            server.sql(END_SESSIONS).await;
            // The node learns of an end a little later than the server.
            let told =
                async || RawClient::new(fixture.at).await.parameters["TimeZone"] == "Asia/Tokyo";
            nearpath_testkit::eventually("a later client gets the new zone", told).await;
            let mut next = RawClient::new(fixture.at).await;
            assert_eq!(next.query("SHOW timezone").await.unwrap(), ["Asia/Tokyo"]);
        }
    });
}

#[test]
fn a_promotion_reaches_new_and_open_clients() {
    on_postgres_with!(&[], &[("standby.signal", "")], |server| {
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        let mut open = RawClient::new(fixture.at).await;
        assert_eq!(open.parameters["in_hot_standby"], "on");
        open.query("SELECT 1").await.unwrap();
        server.sql("SELECT pg_promote()").await;
        let told = async || RawClient::new(fixture.at).await.parameters["in_hot_standby"] == "off";
        nearpath_testkit::eventually("a new client hears of the promotion", told).await;
        open.query("SELECT 1").await.unwrap();
        assert_eq!(open.parameters["in_hot_standby"], "off");
        assert_eq!(fixture.backends.opened(), 1, "the open session told it");
    });
}

#[test]
fn a_reloaded_configuration_reaches_new_clients() {
    // In the file, because a setting of the command line could not be reloaded.
    on_postgres!(&[], |server| {
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        let mut first = RawClient::new(fixture.at).await;
        first.query("SELECT 1").await.unwrap();
        server.sql("ALTER SYSTEM SET timezone = 'Asia/Tokyo'").await;
        server.sql("SELECT pg_reload_conf()").await;
        let told = async || RawClient::new(fixture.at).await.parameters["TimeZone"] == "Asia/Tokyo";
        nearpath_testkit::eventually("a new client gets the new zone", told).await;
    });
}
