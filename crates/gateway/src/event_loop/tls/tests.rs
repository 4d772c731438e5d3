//! Reads from a peer whose records have no data. Tests encrypt the records themselves: rustls sends none.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use nearpath_testkit::eventually;
use rustix::io::ioctl_fionread;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustls::crypto::cipher::{AeadKey, Iv, MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::crypto::tls13::OkmBlock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{
    ClientConfig, ClientConnection, ContentType, KeyLog, ProtocolVersion, RootCertStore,
    ServerConfig, ServerConnection, SupportedCipherSuite, Tls13CipherSuite,
};

use super::*;
use crate::event_loop::tests::run_with_loop;

/// Message KeyUpdate that requests none of the peer (RFC 8446 section 4.6.3).
const KEY_UPDATE: &[u8] = &[24, 0, 0, 1, 0];

/// Suite of the tests, whose keys and hashes both have 32 bytes.
fn suite() -> &'static Tls13CipherSuite {
    let suite = ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
    match suite {
        SupportedCipherSuite::Tls13(suite) => suite,
        other => panic!("{other:?} is older"),
    }
}

/// Secret of a client's first application keys, which its session logs.
#[derive(Debug, Default)]
struct TrafficSecret(Mutex<[u8; 32]>);

impl KeyLog for TrafficSecret {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == "CLIENT_TRAFFIC_SECRET_0" {
            self.0.lock().unwrap().copy_from_slice(secret);
        }
    }
}

/// Encrypts records of a client after its handshake.
struct RecordEncrypter {
    secret: [u8; 32],
    encrypter: Box<dyn MessageEncrypter>,
    /// Number of the next record with these keys.
    sequence: u64,
}

impl RecordEncrypter {
    fn new(secret: [u8; 32]) -> Self {
        let key = AeadKey::from(expand_label::<32>(&secret, "key"));
        let iv = Iv::new(expand_label::<12>(&secret, "iv"));
        Self {
            encrypter: suite().aead_alg.encrypter(key, iv),
            secret,
            sequence: 0,
        }
    }

    fn encrypt(&mut self, typ: ContentType, payload: &[u8]) -> Vec<u8> {
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_2, // of the record layer (RFC 8446 section 5.1)
            payload: OutboundChunks::Single(payload),
        };
        let record = self.encrypter.encrypt(message, self.sequence).unwrap();
        self.sequence += 1;
        record.encode()
    }

    /// Encrypts a key update, and takes the next keys.
    fn update_keys(&mut self) -> Vec<u8> {
        let record = self.encrypt(ContentType::Handshake, KEY_UPDATE);
        *self = Self::new(expand_label(&self.secret, "traffic upd"));
        record
    }

    /// Returns at least `length` bytes of empty records and key updates by turns.
    fn encrypt_without_data(&mut self, length: usize) -> Vec<u8> {
        let mut records = Vec::new();
        while records.len() < length {
            for _ in 0..8 {
                records.extend(self.encrypt(ContentType::ApplicationData, b""));
            }
            records.extend(self.update_keys());
        }
        records
    }
}

/// Returns HKDF-Expand-Label without a context (RFC 8446 section 7.1).
fn expand_label<const N: usize>(secret: &[u8; 32], label: &str) -> [u8; N] {
    let label = format!("tls13 {label}");
    let (length, label_length) = ((N as u16).to_be_bytes(), [label.len() as u8]);
    let info = [&length[..], &label_length, label.as_bytes(), &[0]];
    let expander = suite()
        .hkdf_provider
        .expander_for_okm(&OkmBlock::new(secret));
    let mut output = [0; N];
    expander.expand_slice(&info, &mut output).unwrap();
    output
}

/// Returns a server's session after its handshake, and the encrypter of its client.
fn established() -> (ServerConnection, RecordEncrypter) {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256],
        ..ring::default_provider()
    });
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (certificate, key) = (
        pair.cert.der().clone(),
        PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()),
    );
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider.clone());
    let client = client.with_safe_default_protocol_versions().unwrap();
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    let secret = Arc::<TrafficSecret>::default();
    client.key_log = secret.clone();
    let server = ServerConfig::builder_with_provider(provider);
    let server = server.with_safe_default_protocol_versions().unwrap();
    let server = server.with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key.into());
    let mut server = ServerConnection::new(server.unwrap().into()).unwrap();
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(client.into(), name).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        pass_records(&mut client, &mut server);
        pass_records(&mut server, &mut client);
    }
    let secret = *secret.0.lock().unwrap();
    (server, RecordEncrypter::new(secret))
}

fn pass_records<A: SideData, B: SideData>(
    from: &mut ConnectionCommon<A>,
    to: &mut ConnectionCommon<B>,
) {
    let mut records = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut records).unwrap();
    }
    let mut rest = &records[..];
    while !rest.is_empty() {
        to.read_tls(&mut rest).unwrap();
        to.process_new_packets().unwrap();
    }
}

#[test]
fn records_without_data_hold_no_handler() {
    run_with_loop(async |event_loop| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // All records must be there at once: a later one would be awaited.
        set_socket_recv_buffer_size(&listener, 1 << 20).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = PolledSocket::register(socket, event_loop.poller()).unwrap();
        let (mut session, mut client) = established();
        let max_bytes = MAX_READS as usize * READ_BYTES;
        let mut records = client.encrypt_without_data(max_bytes + 1);
        records.extend(client.encrypt(ContentType::ApplicationData, b"data"));
        peer.write_all(&records).unwrap();
        eventually("all records have arrived", async || {
            ioctl_fionread(&socket).unwrap() == records.len() as u64
        })
        .await;

        let mut buffer = BytesMut::new();
        let first = try_read_decrypted(&mut session, &socket, &mut buffer);
        assert_eq!(first.unwrap_err().kind(), io::ErrorKind::Other);
        assert!(buffer.is_empty(), "data of the last record");
        // The task that takes over loses nothing.
        let next = try_read_decrypted(&mut session, &socket, &mut buffer);
        assert_eq!((next.unwrap(), &buffer[..]), (4, &b"data"[..]));
    });
}

#[test]
fn some_records_without_data_precede_the_data_of_one_read() {
    run_with_loop(async |event_loop| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = PolledSocket::register(socket, event_loop.poller()).unwrap();
        let (mut session, mut client) = established();
        let mut records = client.encrypt_without_data(READ_BYTES);
        records.extend(client.encrypt(ContentType::ApplicationData, b"data"));
        peer.write_all(&records).unwrap();
        eventually("all records have arrived", async || {
            ioctl_fionread(&socket).unwrap() == records.len() as u64
        })
        .await;
        let mut buffer = BytesMut::new();
        let read = try_read_decrypted(&mut session, &socket, &mut buffer);
        assert_eq!((read.unwrap(), &buffer[..]), (4, &b"data"[..]));
    });
}
