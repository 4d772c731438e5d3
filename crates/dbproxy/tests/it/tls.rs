//! TLS that the node originates, to real servers, for functions that use none.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nearpath_dbproxy::tls_tunnel;
use nearpath_types::egress::{EgressHost, EgressProtocol, EgressSpec, EgressTls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::clients::run_program;
use crate::fixture::{AdapterFixture, default_egress, node_login, run_local};
use crate::redis::need;
use crate::server::{self, TestServer};

/// A self-signed certificate of a server, with its files.
struct ServerCertificate {
    pem: String,
    files: tempfile::TempDir,
}

impl ServerCertificate {
    fn self_signed(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("cert"), made.cert.pem()).unwrap();
        std::fs::write(files.path().join("key"), made.signing_key.serialize_pem()).unwrap();
        Self {
            pem: made.cert.pem(),
            files,
        }
    }

    fn path(&self, what: &str) -> PathBuf {
        self.files.path().join(what)
    }
}

/// Starts nginx with TLS, which reports how it was reached.
async fn start_tls_nginx(certificate: &ServerCertificate) -> Option<TestServer> {
    let (cert, key) = (certificate.path("cert"), certificate.path("key"));
    TestServer::start(move |folder_path, at| {
        let (folder, cert, key) = (folder_path.display(), cert.display(), key.display());
        let config = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
             http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
             uwsgi_temp_path {folder}; scgi_temp_path {folder}; ssl_session_cache shared:S:1m;
             ssl_protocols TLSv1.2 TLSv1.3;
             server {{ listen {at} ssl; ssl_certificate {cert}; ssl_certificate_key {key};
               location / {{ return 200 \"$ssl_protocol $ssl_session_reused $connection $request_uri\\n\"; }} }} }}"
        );
        std::fs::write(folder_path.join("nginx.conf"), config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-c").arg(folder_path.join("nginx.conf")).arg("-p").arg(folder_path).arg("-e").arg(folder_path.join("error.log"));
        command
    })
    .await
}

fn tls_egress(protocol: EgressProtocol, at: SocketAddr) -> EgressSpec {
    EgressSpec {
        tls: EgressTls::Originate {
            ca: Some("ca".into()),
        },
        ..default_egress(protocol, at)
    }
}

async fn get_response(at: SocketAddr, path: &str) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .await
        .unwrap();
    let mut received = Vec::new();
    // Without a connection to the server the client's own is reset.
    let _ = client.read_to_end(&mut received).await;
    String::from_utf8(received).unwrap()
}

#[test]
fn http_uses_tls_and_resumes_sessions() {
    run_local(async {
        let certificate = ServerCertificate::self_signed("127.0.0.1");
        let server = need!(start_tls_nginx(&certificate).await, "nginx");
        // One connection per request: nothing is kept idle.
        let one = EgressSpec {
            idle: std::time::Duration::ZERO,
            ..tls_egress(EgressProtocol::Http, server.at)
        };
        let fixture = AdapterFixture::open(one, &[("ca", &certificate.pem)]).await;
        let received = [
            get_response(fixture.at, "/a").await,
            get_response(fixture.at, "/b").await,
        ];
        assert!(
            received[0].contains("TLSv1.3 . ") && received[0].ends_with("/a\n"),
            "{received:?}"
        );
        assert!(
            received[1].contains("TLSv1.3 r "),
            "the second connection resumes the first one's session: {received:?}"
        );
        let kept = AdapterFixture::open(
            tls_egress(EgressProtocol::Http, server.at),
            &[("ca", &certificate.pem)],
        )
        .await;
        for turn in 1..=3 {
            assert!(get_response(kept.at, "/c").await.ends_with("/c\n"));
            kept.wait_served(turn).await;
        }
        assert_eq!(kept.backends.opened(), 1);
    });
}

#[test]
fn a_warm_tls_session_carries_a_function_of_any_protocol() {
    run_local(async {
        let certificate = ServerCertificate::self_signed("127.0.0.1");
        let server = need!(start_tls_nginx(&certificate).await, "nginx");
        let fixture = AdapterFixture::open_with(
            tls_egress(EgressProtocol::Tcp, server.at),
            &[("ca", &certificate.pem)],
            tls_tunnel::serve,
        )
        .await;
        let mut connections = std::collections::BTreeSet::new();
        let mut clients = 0;
        while fixture.ledger.hits.get() < 3 {
            let received = get_response(fixture.at, "/warm").await;
            assert!(received.ends_with("/warm\n"), "{received}");
            connections.insert(received.split_whitespace().rev().nth(1).unwrap().to_owned());
            clients += 1;
            fixture.wait_served(clients).await;
        }
        assert_eq!(
            connections.len(),
            clients,
            "no connection serves two: {connections:?}"
        );
    });
}

#[test]
fn a_wrong_name_or_authority_is_refused() {
    run_local(async {
        let (certificate, other) = (
            ServerCertificate::self_signed("127.0.0.1"),
            ServerCertificate::self_signed("127.0.0.1"),
        );
        let server = need!(start_tls_nginx(&certificate).await, "nginx");
        let wrong_ca = tls_egress(EgressProtocol::Http, server.at);
        let wrong_name = EgressSpec {
            host: EgressHost::Name("localhost".into()),
            ..wrong_ca.clone()
        };
        let no_secret = EgressSpec {
            tls: EgressTls::Originate {
                ca: Some("none".into()),
            },
            ..wrong_ca.clone()
        };
        let systems = EgressSpec {
            tls: EgressTls::Originate { ca: None },
            ..wrong_ca.clone()
        };
        for (egress, ca, why) in [
            (wrong_ca.clone(), &other, "invalid peer certificate"),
            (systems, &certificate, "invalid peer certificate"),
            (wrong_name, &certificate, "not valid for name"),
            (no_secret, &certificate, "secret:none"),
        ] {
            let fixture = AdapterFixture::open(egress, &[("ca", &ca.pem)]).await;
            let received = get_response(fixture.at, "/").await;
            assert!(
                received.starts_with("HTTP/1.1 502") && received.contains(why),
                "{why}: {received}"
            );
        }
        let raw = AdapterFixture::open_with(
            EgressSpec {
                protocol: EgressProtocol::Tcp,
                ..wrong_ca
            },
            &[("ca", &other.pem)],
            tls_tunnel::serve,
        )
        .await;
        assert_eq!(
            get_response(raw.at, "/").await,
            "",
            "the client's connection is reset"
        );
    });
}

#[test]
fn redis_uses_tls() {
    run_local(async {
        let certificate = ServerCertificate::self_signed("127.0.0.1");
        let (cert, key) = (certificate.path("cert"), certificate.path("key"));
        let start = move |folder_path: &Path, at: SocketAddr| {
            let mut command = Command::new("redis-server");
            command.args([
                "--port",
                "0",
                "--tls-port",
                &at.port().to_string(),
                "--save",
                "",
                "--tls-auth-clients",
                "no",
            ]);
            command
                .arg("--tls-cert-file")
                .arg(&cert)
                .arg("--tls-key-file")
                .arg(&key)
                .arg("--dir")
                .arg(folder_path);
            command
        };
        let server = need!(TestServer::start(start).await, "redis-server");
        let fixture = AdapterFixture::open(
            tls_egress(EgressProtocol::Redis, server.at),
            &[("ca", &certificate.pem)],
        )
        .await;
        for turn in 1..=3 {
            let mut cli = Command::new("redis-cli");
            cli.args(["-p", &fixture.at.port().to_string(), "INCR", "n"]);
            assert_eq!(run_program(&mut cli, "").await, format!("{turn}\n"));
            fixture.wait_served(turn).await;
        }
        assert_eq!(
            fixture.backends.opened(),
            1,
            "tickets that the server sends later do not make a connection look used"
        );
    });
}

#[test]
fn mariadb_uses_tls_and_may_require_it() {
    run_local(async {
        let certificate = ServerCertificate::self_signed("127.0.0.1");
        let (cert, key) = (
            certificate.path("cert").display().to_string(),
            certificate.path("key").display().to_string(),
        );
        // The server's command line has to outlive its restarts.
        let more = vec![
            format!("--ssl-cert={cert}").leak() as &str,
            format!("--ssl-key={key}").leak(),
            "--require-secure-transport=ON",
        ]
        .leak();
        let server = need!(server::start_mariadb(more).await, "mariadbd");
        for own in [false, true] {
            let egress = EgressSpec {
                login: node_login("fn").filter(|_| own),
                ..tls_egress(EgressProtocol::Mysql, server.at)
            };
            let secrets = [("ca", certificate.pem.as_str()), ("password", "pw")];
            let fixture = AdapterFixture::open(egress.clone(), &secrets).await;
            let client = |fixture: &AdapterFixture| {
                let mut cli = Command::new("mariadb");
                cli.args([
                    "--no-defaults",
                    "-h127.0.0.1",
                    "-P",
                    &fixture.at.port().to_string(),
                    "-ufn",
                    "-ppw",
                    "-NB",
                    "shop",
                ]);
                cli
            };
            for turn in 1..=2 {
                let received =
                    run_program(&mut client(&fixture), "SHOW STATUS LIKE 'Ssl_version';").await;
                assert_eq!(received, "Ssl_version\tTLSv1.3\n");
                fixture.wait_served(turn).await;
            }
            assert_eq!(fixture.backends.opened(), 1);
            let plain = AdapterFixture::open(
                EgressSpec {
                    tls: EgressTls::Pass,
                    ..egress
                },
                &secrets,
            )
            .await;
            let refused = crate::clients::program_output(&mut client(&plain), "SELECT 1;").await;
            assert!(
                String::from_utf8_lossy(&refused.stderr).contains("1045"),
                "{refused:?}"
            );
        }
    });
}
