//! TLS that the node speaks, to real servers, for functions that speak plainly.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nearpath_dbproxy::{http, mysql, redis, tls_tunnel};
use nearpath_types::egress::{Egress, Host, Protocol, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::clients::run;
use crate::redis::need;
use crate::server::{self, Server};
use crate::stage::{Stage, egress, login, on_stage};

/// A server's certificate, which is its own authority, in files that end with this.
struct Certificate {
    pem: String,
    files: tempfile::TempDir,
}

impl Certificate {
    fn of(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("cert"), made.cert.pem()).unwrap();
        std::fs::write(files.path().join("key"), made.signing_key.serialize_pem()).unwrap();
        Self { pem: made.cert.pem(), files }
    }

    fn path(&self, what: &str) -> PathBuf {
        self.files.path().join(what)
    }
}

/// nginx that says how it was reached.
async fn nginx(certificate: &Certificate) -> Option<Server> {
    let (cert, key) = (certificate.path("cert"), certificate.path("key"));
    Server::start(move |home, at| {
        let (folder, cert, key) = (home.display(), cert.display(), key.display());
        let config = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
             http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
             uwsgi_temp_path {folder}; scgi_temp_path {folder}; ssl_session_cache shared:S:1m;
             ssl_protocols TLSv1.2 TLSv1.3;
             server {{ listen {at} ssl; ssl_certificate {cert}; ssl_certificate_key {key};
               location / {{ return 200 \"$ssl_protocol $ssl_session_reused $connection $request_uri\\n\"; }} }} }}"
        );
        std::fs::write(home.join("nginx.conf"), config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-c").arg(home.join("nginx.conf")).arg("-p").arg(home).arg("-e").arg(home.join("error.log"));
        command
    })
    .await
}

fn originate(protocol: Protocol, at: SocketAddr) -> Egress {
    Egress { tls: Tls::Originate { ca: Some("ca".into()) }, ..egress(protocol, at) }
}

async fn get(at: SocketAddr, path: &str) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut said = Vec::new();
    // Where there is no connection, the client's is reset.
    let _ = client.read_to_end(&mut said).await;
    String::from_utf8(said).unwrap()
}

#[test]
fn http_goes_over_tls_and_sessions_are_resumed() {
    on_stage(async {
        let certificate = Certificate::of("127.0.0.1");
        let server = need!(nginx(&certificate).await, "nginx");
        // One connection for each request: nothing is kept.
        let one = Egress { idle: std::time::Duration::ZERO, ..originate(Protocol::Http, server.at) };
        let stage = Stage::open(one, &[("ca", &certificate.pem)], http::serve).await;
        let said = [get(stage.at, "/a").await, get(stage.at, "/b").await];
        assert!(said[0].contains("TLSv1.3 . ") && said[0].ends_with("/a\n"), "{said:?}");
        assert!(said[1].contains("TLSv1.3 r "), "the second connection resumes the first one's session: {said:?}");
        let kept = Stage::open(originate(Protocol::Http, server.at), &[("ca", &certificate.pem)], http::serve).await;
        for turn in 1..=3 {
            assert!(get(kept.at, "/c").await.ends_with("/c\n"));
            kept.served(turn).await;
        }
        assert_eq!(kept.backends.opened(), 1);
    });
}

#[test]
fn a_warm_tls_session_carries_a_function_of_any_protocol() {
    on_stage(async {
        let certificate = Certificate::of("127.0.0.1");
        let server = need!(nginx(&certificate).await, "nginx");
        let stage =
            Stage::open(originate(Protocol::Tcp, server.at), &[("ca", &certificate.pem)], tls_tunnel::serve).await;
        let mut connections = std::collections::BTreeSet::new();
        let mut clients = 0;
        while stage.ledger.hits.get() < 3 {
            let said = get(stage.at, "/warm").await;
            assert!(said.ends_with("/warm\n"), "{said}");
            connections.insert(said.split_whitespace().rev().nth(1).unwrap().to_owned());
            clients += 1;
            stage.served(clients).await;
        }
        assert_eq!(connections.len(), clients, "no connection serves two: {connections:?}");
    });
}

#[test]
fn another_name_or_authority_is_refused() {
    on_stage(async {
        let (certificate, other) = (Certificate::of("127.0.0.1"), Certificate::of("127.0.0.1"));
        let server = need!(nginx(&certificate).await, "nginx");
        let wrong_ca = originate(Protocol::Http, server.at);
        let wrong_name = Egress { host: Host::Name("localhost".into()), ..wrong_ca.clone() };
        let no_secret = Egress { tls: Tls::Originate { ca: Some("none".into()) }, ..wrong_ca.clone() };
        let systems = Egress { tls: Tls::Originate { ca: None }, ..wrong_ca.clone() };
        for (egress, ca, why) in [
            (wrong_ca.clone(), &other, "invalid peer certificate"),
            (systems, &certificate, "invalid peer certificate"),
            (wrong_name, &certificate, "not valid for name"),
            (no_secret, &certificate, "secret:none"),
        ] {
            let stage = Stage::open(egress, &[("ca", &ca.pem)], http::serve).await;
            let said = get(stage.at, "/").await;
            assert!(said.starts_with("HTTP/1.1 502") && said.contains(why), "{why}: {said}");
        }
        let raw =
            Stage::open(Egress { protocol: Protocol::Tcp, ..wrong_ca }, &[("ca", &other.pem)], tls_tunnel::serve).await;
        assert_eq!(get(raw.at, "/").await, "", "the client's connection is reset");
    });
}

#[test]
fn redis_goes_over_tls() {
    on_stage(async {
        let certificate = Certificate::of("127.0.0.1");
        let (cert, key) = (certificate.path("cert"), certificate.path("key"));
        let start = move |home: &Path, at: SocketAddr| {
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
            command.arg("--tls-cert-file").arg(&cert).arg("--tls-key-file").arg(&key).arg("--dir").arg(home);
            command
        };
        let server = need!(Server::start(start).await, "redis-server");
        let stage = Stage::open(originate(Protocol::Redis, server.at), &[("ca", &certificate.pem)], redis::serve).await;
        for turn in 1..=3 {
            let mut cli = Command::new("redis-cli");
            cli.args(["-p", &stage.at.port().to_string(), "INCR", "n"]);
            assert_eq!(run(&mut cli, "").await, format!("{turn}\n"));
            stage.served(turn).await;
        }
        assert_eq!(
            stage.backends.opened(),
            1,
            "tickets that the server sends later do not make a connection look used"
        );
    });
}

#[test]
fn mariadb_goes_over_tls_and_may_insist_on_it() {
    on_stage(async {
        let certificate = Certificate::of("127.0.0.1");
        let (cert, key) =
            (certificate.path("cert").display().to_string(), certificate.path("key").display().to_string());
        // The server's command line has to live as long as it may be started again.
        let more = vec![
            format!("--ssl-cert={cert}").leak() as &str,
            format!("--ssl-key={key}").leak(),
            "--require-secure-transport=ON",
        ]
        .leak();
        let server = need!(server::mariadb(more).await, "mariadbd");
        for own in [false, true] {
            let egress = Egress { login: login("fn").filter(|_| own), ..originate(Protocol::Mysql, server.at) };
            let secrets = [("ca", certificate.pem.as_str()), ("password", "pw")];
            let stage = Stage::open(egress.clone(), &secrets, mysql::serve).await;
            let client = |stage: &Stage| {
                let mut cli = Command::new("mariadb");
                cli.args([
                    "--no-defaults",
                    "-h127.0.0.1",
                    "-P",
                    &stage.at.port().to_string(),
                    "-ufn",
                    "-ppw",
                    "-NB",
                    "shop",
                ]);
                cli
            };
            for turn in 1..=2 {
                let said = run(&mut client(&stage), "SHOW STATUS LIKE 'Ssl_version';").await;
                assert_eq!(said, "Ssl_version\tTLSv1.3\n");
                stage.served(turn).await;
            }
            assert_eq!(stage.backends.opened(), 1);
            let plain = Stage::open(Egress { tls: Tls::Pass, ..egress }, &secrets, mysql::serve).await;
            let refused = crate::clients::output(&mut client(&plain), "SELECT 1;").await;
            assert!(String::from_utf8_lossy(&refused.stderr).contains("1045"), "{refused:?}");
        }
    });
}
