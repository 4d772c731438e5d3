//! TLS of a function's own code, with its own certificate, through the egress proxy and by warm
//! sockets: the node does not touch it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use nearpath_testkit::{eventually, need_root, skip};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::egress::{hello_code, is_reset_error, run_code, runner_function};
use crate::external_server::{MACHINE_NAME, on_own_machine};
use crate::prefetch::pool_value;
use crate::test_server::TestServer;

const PYTHON_CLIENT: &str = r#"import socket, ssl, sys
context = ssl.create_default_context(cafile="ca.pem")
context.load_cert_chain("client.pem", "client.key")
with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 20), server_hostname=sys.argv[1]) as s:
    s.sendall(b"hello\n")
    print(s.recv(99).decode().strip())
"#;

const NODE_CLIENT: &str = r#"const fs = require("fs"), [host, port] = process.argv.slice(2);
const read = (name) => fs.readFileSync(name);
const own = { ca: read("ca.pem"), cert: read("client.pem"), key: read("client.key") };
const socket = require("tls").connect({ host, port, servername: host, ...own }, () => socket.write("hello\n"));
socket.setTimeout(20000, () => process.exit(1));
socket.on("error", (error) => { console.log(error.message); process.exit(1); });
socket.on("data", (data) => { console.log(data.toString().trim()); socket.end(); });
"#;

const GO_CLIENT: &str = r#"package main

import ("bufio"; "crypto/tls"; "crypto/x509"; "fmt"; "os")

func main() {
	authorities := x509.NewCertPool()
	pem, _ := os.ReadFile("ca.pem")
	authorities.AppendCertsFromPEM(pem)
	own, err := tls.LoadX509KeyPair("client.pem", "client.key")
	if err != nil { panic(err) }
	config := &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{own}}
	connection, err := tls.Dial("tcp", os.Args[1]+":"+os.Args[2], config)
	if err != nil { panic(err) }
	fmt.Fprintln(connection, "hello")
	line, _ := bufio.NewReader(connection).ReadString('\n')
	fmt.Print(line)
	connection.Close()
}
"#;

const JAVA_CLIENT: &str = r#"import java.io.*; import java.nio.file.*; import java.security.*; import java.security.cert.*;
import java.security.cert.Certificate; import java.security.spec.*; import java.util.*; import javax.net.ssl.*;
public class Client {
    static Certificate certificate(String name) throws Exception {
        try (InputStream in = new FileInputStream(name)) { return CertificateFactory.getInstance("X.509").generateCertificate(in); }
    }
    public static void main(String[] arguments) throws Exception {
        String text = Files.readString(Path.of("client.key")).replaceAll("-----[A-Z ]+-----|\\s", "");
        PrivateKey key = KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(Base64.getDecoder().decode(text)));
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        store.setCertificateEntry("ca", certificate("ca.pem"));
        store.setKeyEntry("own", key, new char[0], new Certificate[] { certificate("client.pem") });
        KeyManagerFactory keys = KeyManagerFactory.getInstance("PKIX");
        keys.init(store, new char[0]);
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        try (SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(arguments[0], Integer.parseInt(arguments[1]))) {
            SSLParameters parameters = socket.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            socket.setSSLParameters(parameters);
            socket.getOutputStream().write("hello\n".getBytes());
            System.out.println(new BufferedReader(new InputStreamReader(socket.getInputStream())).readLine());
        }
    }
}
"#;

/// Creates an authority with certificates for a server of this name and a client; writes the
/// client's files to `folder`.
fn mutual_tls_config(name: &str, folder: &Path) -> ServerConfig {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let certificate = |name: &str, purpose| {
        let (mut params, key) = (
            CertificateParams::new([name.to_owned()]).unwrap(),
            KeyPair::generate().unwrap(),
        );
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        (params.signed_by(&key, &authority).unwrap(), key)
    };
    let (server, server_key) = certificate(name, ExtendedKeyUsagePurpose::ServerAuth);
    let (client, client_key) =
        certificate("client.example.com", ExtendedKeyUsagePurpose::ClientAuth);
    let files = [
        ("ca.pem", authority.pem()),
        ("client.pem", client.pem()),
        ("client.key", client_key.serialize_pem()),
    ];
    files
        .iter()
        .for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let key = PrivateKeyDer::try_from(server_key.serialize_der()).unwrap();
    config
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![server.der().clone()], key)
        .unwrap()
}

/// Starts a server that responds to each line with the TLS server name, and whether the client sent
/// a certificate.
fn start_tls_server(config: ServerConfig) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, config) = (listener.local_addr().unwrap().port(), Arc::new(config));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            thread::spawn(move || {
                let mut lines = BufReader::new(StreamOwned::new(session, client));
                let mut line = String::new();
                if lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                    let stream = lines.get_mut();
                    let (name, presented) = (
                        stream.conn.server_name(),
                        stream.conn.peer_certificates().is_some(),
                    );
                    let reply = format!("heard {} {presented} {line}", name.unwrap_or("nobody"));
                    // the client may have closed the connection
                    let _ = stream.write_all(reply.as_bytes());
                    let _ = lines.read_line(&mut line);
                }
            });
        }
    });
    port
}

fn run_to_end(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Installed clients of these languages, as commands to run in the function's folder.
fn available_clients(folder: &Path) -> Vec<(&'static str, String)> {
    let sources = [
        ("client.py", PYTHON_CLIENT),
        ("client.js", NODE_CLIENT),
        ("client.go", GO_CLIENT),
        ("Client.java", JAVA_CLIENT),
    ];
    sources
        .iter()
        .for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    let mut go = Command::new("go");
    go.current_dir(folder)
        .env("CGO_ENABLED", "0")
        .args(["build", "-o", "goclient", "client.go"]);
    let mut javac = Command::new("javac");
    javac.arg("-d").arg(folder).arg(folder.join("Client.java"));
    [
        ("Python", true, "python3 client.py"),
        (
            "Node",
            run_to_end(Command::new("node").arg("--version")),
            "node client.js",
        ),
        ("Go", run_to_end(&mut go), "./goclient"),
        (
            "Java",
            run_to_end(&mut javac),
            "java -XX:TieredStopAtLevel=1 -cp . Client",
        ),
    ]
    .into_iter()
    .filter(|(_, there, _)| *there)
    .map(|(language, _, command)| (language, command.to_owned()))
    .collect()
}

/// The function's plain connection goes through TLS of the node, on connections that were ready
/// before.
#[tokio::test]
async fn tls_of_the_node_is_ready_before_it_is_wanted() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed([MACHINE_NAME.to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    let port = start_tls_server(
        config
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap(),
    );
    let server = TestServer::start_in(folder.path(), &[]).await;
    for (name, value) in [("ca", cert.pem()), ("other", certificate_of_another())] {
        let secret = serde_json::json!({ "name": name, "value": value }).to_string();
        assert!(
            server
                .send_request(http::Method::POST, "/system/secrets", secret)
                .await
                .status()
                .is_success()
        );
    }
    let egress = |ca| format!("{MACHINE_NAME}:{port} protocol=tcp tls=originate ca=secret:{ca}");
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress("ca")))
        .await;
    server
        .deploy_ready(&runner_function(folder.path(), "doubts", &egress("other")))
        .await;
    let received = format!("heard {MACHINE_NAME} false hello");
    eventually("a connection was ready with TLS on it", async || {
        assert_eq!(
            run_code(&server, "goes", &hello_code(MACHINE_NAME, port)).await,
            received,
            "{}",
            server.log()
        );
        pool_value(&server, "goes", port, "hits") > 2
    })
    .await;
    let reply = run_code(&server, "doubts", &hello_code(MACHINE_NAME, port)).await;
    assert!(is_reset_error(&reply), "{reply}");
    // The reset may reach the function before the line is written.
    eventually("the tenant is told why", async || {
        let path = "/system/logs?name=doubts&follow=false";
        let log = server.send_request(http::Method::GET, path, "").await;
        String::from_utf8_lossy(log.body()).contains("certificate")
    })
    .await;
}

fn certificate_of_another() -> String {
    rcgen::generate_simple_self_signed([MACHINE_NAME.to_owned()])
        .unwrap()
        .cert
        .pem()
}

#[tokio::test]
async fn tls_of_the_functions_own_goes_by_both_ways_out_untouched() {
    need_root!();
    if let Err(why) = nearpath_kernel::probe::check_interception_support() {
        skip!("no shortcut here: {why}");
    }
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let home_dir = folder.path().join("fn-given");
    std::fs::create_dir_all(&home_dir).unwrap();
    let (config, clients) = (
        mutual_tls_config(MACHINE_NAME, &home_dir),
        available_clients(&home_dir),
    );
    let port = start_tls_server(config);
    let server = TestServer::start_in(&folder.path().join("data"), &[]).await;
    let provided = runner_function(
        folder.path(),
        "given",
        &format!("{MACHINE_NAME}:{port} protocol=tcp"),
    );
    let mut carried = runner_function(
        folder.path(),
        "carried",
        &format!("{MACHINE_NAME}:{port} protocol=tcp warm=0"),
    );
    carried["image"] = provided["image"].clone();
    server.deploy_ready(&provided).await;
    server.deploy_ready(&carried).await;
    for function in ["given", "carried"] {
        eventually("a warm socket is there", async || {
            function == "carried" || pool_value(&server, function, port, "warm") > 0
        })
        .await;
        for (language, command) in &clients {
            let code = format!(
                "done = subprocess.run('{command} {MACHINE_NAME} {port}', shell=True, capture_output=True, timeout=60, text=True, cwd='/home/app/function')\n\
                 said = done.stdout.strip() or done.stderr"
            );
            for _ in 0..2 {
                let reply = run_code(&server, function, &code).await;
                assert_eq!(
                    reply,
                    format!("heard {MACHINE_NAME} true hello"),
                    "{language}, {function}: {}",
                    server.log()
                );
            }
        }
    }
    assert!(pool_value(&server, "given", port, "replacedSockets") > 0);
    assert_eq!(pool_value(&server, "carried", port, "replacedSockets"), 0);
}
