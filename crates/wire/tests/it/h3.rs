//! An HTTP/3 endpoint without a gateway.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nearpath_wire::h3::Http3ServerConfig;
use nearpath_wire::server::HttpLimits;
use nearpath_wire::tls::CertifiedKeyPair;
use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn key_pair() -> CertifiedKeyPair {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    CertifiedKeyPair {
        chain: vec![made.cert.der().clone()],
        key,
    }
}

fn client(pair: &CertifiedKeyPair) -> quinn::Endpoint {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pair.chain[0].clone()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ));
    let builder = builder
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap();
    let mut tls = builder.with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let mut endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(
        QuicClientConfig::try_from(tls).unwrap(),
    )));
    endpoint
}

/// Reason why a client's connection closes after its process died and a successor took the port
/// over.
async fn close_reason_after_restart(
    pair: &CertifiedKeyPair,
    successor: CertifiedKeyPair,
) -> quinn::ConnectionError {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (addr, again) = (socket.local_addr().unwrap(), socket.try_clone().unwrap());
    let server_config = Http3ServerConfig::new(pair, &HttpLimits::default(), 1).unwrap();
    let first = runtime();
    let serving = std::thread::spawn(move || {
        let accepted = first.block_on(async {
            let endpoint = server_config.open_endpoint(socket, 0).unwrap();
            endpoint.accept().await.unwrap().await.unwrap()
        });
        first.shutdown_background(); // like a kill: no close is sent
        std::mem::forget(accepted);
    });
    let connection = client(pair)
        .connect(addr, "localhost")
        .unwrap()
        .await
        .unwrap();
    tokio::task::spawn_blocking(|| serving.join().unwrap())
        .await
        .unwrap();
    let _successor = Http3ServerConfig::new(&successor, &HttpLimits::default(), 1)
        .unwrap()
        .open_endpoint(again, 0)
        .unwrap();
    let asking = async {
        loop {
            match connection.open_bi().await {
                Ok((mut send, _)) => drop(send.write_all(b"is anybody there?").await),
                Err(error) => return error,
            }
            // quinn limits the rate of stateless resets
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asking)
        .await
        .unwrap_or(quinn::ConnectionError::TimedOut)
}

#[tokio::test]
async fn a_successor_resets_connections_of_a_process_that_died() {
    let pair = key_pair();
    let same = CertifiedKeyPair {
        chain: pair.chain.clone(),
        key: pair.key.clone_key(),
    };
    assert_eq!(
        close_reason_after_restart(&pair, same).await,
        quinn::ConnectionError::Reset
    );
}

#[tokio::test]
async fn control_a_successor_with_another_key_resets_nothing() {
    assert_eq!(
        close_reason_after_restart(&key_pair(), key_pair()).await,
        quinn::ConnectionError::TimedOut
    );
}
