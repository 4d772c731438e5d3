//! A server that requires TLS, and a function that uses none.

use nearpath_types::egress::{EgressSpec, EgressTls, PoolingMode};

use crate::fixture::{AdapterFixture, run_local};
use crate::postgres::{as_function, on_postgres_with};
use crate::postgres_raw::RawClient;
use crate::postgres_server::{PASSWORD, PostgresServer};

#[test]
fn the_node_uses_tls_where_the_server_requires_it() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let files = [
        ("server.crt", certificate.as_str()),
        ("server.key", key.as_str()),
    ];
    on_postgres_with!(&["ssl=on"], &files, |server| {
        server
            .sql(&format!(
                "CREATE ROLE strict LOGIN PASSWORD '{}'",
                PASSWORD.replace('\'', "''")
            ))
            .await;
        server
            .set_hba_rule("hostssl all all all scram-sha-256")
            .await;
        let tls = EgressTls::Originate {
            ca: Some("ca".into()),
        };
        let mut egress = EgressSpec {
            tls,
            ..as_function(server.at, PoolingMode::Transaction)
        };
        egress.login.as_mut().unwrap().user = "strict".into();
        let secrets = [("password", PASSWORD), ("ca", certificate.as_str())];
        let fixture = AdapterFixture::open(egress.clone(), &secrets).await;
        for _ in 1..=2 {
            let mut client = RawClient::new(fixture.at).await;
            let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            assert_eq!(client.query(encrypted).await.unwrap(), ["t"]);
            client.leave(true).await;
        }
        assert_eq!(fixture.backends.opened(), 1);
        let plain = AdapterFixture::open(
            EgressSpec {
                tls: EgressTls::Pass,
                ..egress.clone()
            },
            &secrets,
        )
        .await;
        assert!(
            RawClient::log_in(plain.at, &[])
                .await
                .err()
                .unwrap()
                .contains("28000"),
            "the server insists"
        );
        let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])
            .unwrap()
            .cert
            .pem();
        let wrong = AdapterFixture::open(egress, &[("password", PASSWORD), ("ca", &other)]).await;
        let received = RawClient::log_in(wrong.at, &[]).await.err().unwrap();
        assert!(
            received.contains("08006") && received.contains("certificate"),
            "{received}"
        );
    });
}
