//! A gateway at an `https` URL. What is trusted is read once a process, so each caller is a process of its own: this one again.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nearpath::{CallOptions, Error, Response};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};

/// Set where this program is the caller: with what it prints.
const CALLER: &str = "NEARPATH_TEST_CALLER";

#[test]
#[ignore = "the caller of the other tests"]
fn caller() {
    let response_text = outcome(nearpath::run(nearpath::call("currency", "EUR")).unwrap());
    let waiting = outcome(nearpath::blocking::ThreadEndpoint::default().call(
        "currency",
        "EUR",
        &CallOptions::default(),
    ));
    assert_eq!(response_text, waiting);
    std::fs::write(std::env::var_os(CALLER).unwrap(), response_text).unwrap();
}

fn outcome(answer: Result<Response, Error>) -> String {
    match answer {
        Ok(answer) => format!(
            "{} {}",
            answer.status(),
            String::from_utf8_lossy(answer.body())
        ),
        Err(error) => format!(
            "{} {} {error}",
            error.kind().code_name(),
            error.retry_is_safe()
        ),
    }
}

/// What a caller in such surroundings is response_text.
fn response_text(folder: &Path, words: &[(&str, &str)]) -> String {
    let to = folder.join("response_text");
    let mut caller = Command::new(std::env::current_exe().unwrap());
    caller
        .args(["--exact", "https::caller", "--ignored"])
        .env(CALLER, &to)
        .env("NEARPATH_DISPATCH", "");
    let done = caller.envs(words.iter().copied()).output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stdout)
    );
    std::fs::read_to_string(to).unwrap()
}

/// The URL of a gateway with a certificate for `localhost`, which it leaves in the folder, and the file.
fn gateway(folder: &Path) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = folder.join("authority.pem");
    std::fs::write(&file, made.cert.pem()).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        listener
            .incoming()
            .for_each(|socket| answer(socket.unwrap(), config.clone()))
    });
    (
        format!("https://localhost:{port}/"),
        file.to_str().unwrap().to_owned(),
    )
}

/// Answers one call, whose body is `EUR`.
fn answer(mut socket: TcpStream, config: ServerConfig) {
    let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
    let mut stream = Stream::new(&mut tls, &mut socket);
    let (mut asked, mut octet) = (Vec::new(), [0]);
    while !asked.ends_with(b"EUR") {
        match stream.read(&mut octet) {
            Ok(1) => asked.extend(octet),
            _ => return, // the caller does not trust it
        }
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n1.07")
        .unwrap();
}

#[test]
fn a_gateway_that_is_trusted_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (url, file) = gateway(folder.path());
    for word in ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"] {
        assert_eq!(
            response_text(folder.path(), &[("NEARPATH_GATEWAY", &url), (word, &file)]),
            "200 1.07",
            "{word}"
        );
    }
}

#[test]
fn one_that_is_not_is_told_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (url, file) = gateway(folder.path());
    let error = response_text(folder.path(), &[("NEARPATH_GATEWAY", &url)]);
    assert!(
        error.starts_with("unsent true") && error.contains("SSL_CERT_FILE"),
        "{error}"
    );
    let elsewhere = url.replace("localhost", "127.0.0.1");
    let error = response_text(
        folder.path(),
        &[("NEARPATH_GATEWAY", &elsewhere), ("SSL_CERT_FILE", &file)],
    );
    assert!(
        error.starts_with("unsent true") && error.contains("not valid for name"),
        "{error}"
    );
}

#[test]
fn a_port_without_tls_is_said_to_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        listener.incoming().for_each(|socket| {
            socket
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap()
        });
    });
    let error = response_text(folder.path(), &[("NEARPATH_GATEWAY", &url)]);
    assert!(
        error.starts_with("unsent true") && error.contains("is there TLS at that port?"),
        "{error}"
    );
}
