//! A server that asks for TLS, and a function that speaks plainly.

use nearpath_types::egress::{Egress, Mode, Tls};

use crate::postgres::{as_function, on_postgres_with};
use crate::postgres_raw::Raw;
use crate::postgres_server::{PASSWORD, Postgres};
use crate::stage::{Stage, on_stage};

#[test]
fn the_node_speaks_tls_where_the_server_asks_for_it() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let files = [("server.crt", certificate.as_str()), ("server.key", key.as_str())];
    on_postgres_with!(&["ssl=on"], &files, |server| {
        server.sql(&format!("CREATE ROLE strict LOGIN PASSWORD '{}'", PASSWORD.replace('\'', "''"))).await;
        server.rule("hostssl all all all scram-sha-256").await;
        let tls = Tls::Originate { ca: Some("ca".into()) };
        let mut egress = Egress { tls, ..as_function(server.at, Mode::Transaction) };
        egress.login.as_mut().unwrap().user = "strict".into();
        let secrets = [("password", PASSWORD), ("ca", certificate.as_str())];
        let serve = nearpath_dbproxy::postgres::serve;
        let stage = Stage::open(egress.clone(), &secrets, serve).await;
        for _ in 1..=2 {
            let mut client = Raw::new(stage.at).await;
            let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            assert_eq!(client.ask(encrypted).await.unwrap(), ["t"]);
            client.leave(true).await;
        }
        assert_eq!(stage.backends.opened(), 1);
        let plain = Stage::open(Egress { tls: Tls::Pass, ..egress.clone() }, &secrets, serve).await;
        assert!(Raw::enter(plain.at, &[]).await.err().unwrap().contains("28000"), "the server insists");
        let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert.pem();
        let wrong = Stage::open(egress, &[("password", PASSWORD), ("ca", &other)], serve).await;
        let said = Raw::enter(wrong.at, &[]).await.err().unwrap();
        assert!(said.contains("08006") && said.contains("certificate"), "{said}");
    });
}
