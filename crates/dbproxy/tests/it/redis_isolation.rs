//! State that one client of Redis leaves behind does not reach the next. The check is shown to fail
//! without the adapter.

use std::io;

use nearpath_types::egress::{EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::redis::need;
use crate::server;
use crate::unclean_adapter::{self, SharedBackend};
use nearpath_testkit::seeded_rng::SeededRng;

const SEEDS: u64 = 50;

/// Returns commands of a client that leaves at a bad moment, and the number of reply bytes that it
/// reads.
fn random_commands(rng: &mut SeededRng) -> (Vec<u8>, usize) {
    let all: [&[u8]; 14] = [
        b"SELECT 5\r\n",
        b"MULTI\r\nSET leaked 1\r\n",
        b"WATCH a\r\n",
        b"CLIENT SETNAME leaked\r\n",
        b"CLIENT TRACKING ON BCAST\r\n",
        b"HELLO 3\r\n",
        b"SUBSCRIBE leaked\r\n",
        b"CLIENT REPLY OFF\r\n",
        b"CLIENT NO-EVICT ON\r\n",
        b"GET big\r\n",
        b"*3\r\n$3\r\nSET\r\n$6\r\nleaked\r\n$100\r\nhalf of it",
        b"BLPOP nothing 0\r\n",
        b"MONITOR\r\n",
        b"READONLY\r\n",
    ];
    let mut received = Vec::new();
    for _ in 0..=rng.below(3) {
        received.extend_from_slice(rng.pick::<&[u8]>(&all));
    }
    (received, usize::try_from(rng.below(2000)).unwrap())
}

/// Sends random commands, and leaves in one of three ways.
async fn run_tenant(at: std::net::SocketAddr, rng: &mut SeededRng) -> Vec<u8> {
    let (received, reads) = random_commands(rng);
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(&received).await.unwrap();
    let mut part = vec![0; reads.max(1)];
    // Some replies never come.
    let _ = tokio::time::timeout(
        std::time::Duration::from_millis(rng.below(8)),
        client.read(&mut part),
    )
    .await;
    match rng.below(3) {
        0 => client.set_zero_linger().unwrap(),
        1 => client.shutdown().await.unwrap_or_default(),
        _ => {}
    }
    received
}

/// Returns what the next client sees of its connection; the same as on a new connection.
async fn next_replies(at: std::net::SocketAddr) -> io::Result<String> {
    let mut client = TcpStream::connect(at).await?;
    client
        .write_all(
            b"ECHO mine\r\nCLIENT GETNAME\r\nGET where\r\nEXEC\r\nCLIENT TRACKINGINFO\r\nDISCARD\r\nECHO done\r\n",
        )
        .await?;
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    while !received.ends_with(b"done\r\n") {
        match client.read(&mut part).await? {
            0 => break,
            read => received.extend_from_slice(&part[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&received).into_owned())
}

const CLEAN_REPLIES: &str = "$4\r\nmine\r\n$-1\r\n$4\r\nzero\r\n-ERR EXEC without MULTI\r\n*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n-ERR DISCARD without MULTI\r\n$4\r\ndone\r\n";

/// Returns the seeds that leaked.
async fn leaks_of(fixture: &AdapterFixture) -> Vec<String> {
    let mut leaks = Vec::new();
    for seed in 0..SEEDS {
        let mut rng = SeededRng::new(seed);
        let received = run_tenant(fixture.at, &mut rng).await;
        fixture
            .wait_served(usize::try_from(2 * seed + 1).unwrap())
            .await;
        let seen = next_replies(fixture.at)
            .await
            .unwrap_or_else(|error| error.to_string());
        if seen != CLEAN_REPLIES {
            leaks.push(format!(
                "seed {seed}: after {:?} the next one saw {seen:?}",
                String::from_utf8_lossy(&received)
            ));
        }
        fixture
            .wait_served(usize::try_from(2 * seed + 2).unwrap())
            .await;
    }
    leaks
}

async fn fill_server(at: std::net::SocketAddr) {
    let mut admin = TcpStream::connect(at).await.unwrap();
    let big = "x".repeat(1_000_000);
    admin
        .write_all(
            format!(
                "SET where zero\r\n*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$1000000\r\n{big}\r\nSELECT 5\r\nSET where five\r\n"
            )
            .as_bytes(),
        )
        .await
        .unwrap();
    let (mut received, mut part) = (0, [0; 64]);
    while received < 20 {
        received += admin.read(&mut part).await.unwrap();
    }
}

#[test]
fn the_next_client_sees_nothing_of_the_previous() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        fill_server(server.at).await;
        // One connection at most: the next client gets the previous one's, or a new one.
        let fixture = AdapterFixture::open(
            EgressSpec {
                max: 1,
                ..default_egress(EgressProtocol::Redis, server.at)
            },
            &[],
        )
        .await;
        let leaks = leaks_of(&fixture).await;
        assert!(
            leaks.is_empty(),
            "{}",
            leaks[..leaks.len().min(3)].join("\n")
        );
        assert!(
            fixture.ledger.resets.get() > 0,
            "nothing was ever cleaned: the test proves nothing"
        );
        assert!(
            u64::from(fixture.backends.opened()) < 2 * SEEDS,
            "nothing was ever used again: the test proves nothing"
        );
    });
}

/// Inline commands that the server splits by its own rules.
const AMBIGUOUS_COMMANDS: [&[u8]; 7] = [
    b"\"SELECT\" 5\r\n",
    b"'select' 5\r\n",
    b"\"\\x53ELECT\" 5\r\n",
    b"SELECT\x0b5\r\n",
    b"\"MULTI\"\r\n",
    b"\"CLIENT\" SETNAME leaked\r\n",
    b"\"SUBSCRIBE\" leaked\r\n",
];

#[test]
fn an_ambiguous_inline_command_leaves_nothing() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        fill_server(server.at).await;
        let fixture = AdapterFixture::open(
            EgressSpec {
                max: 1,
                ..default_egress(EgressProtocol::Redis, server.at)
            },
            &[],
        )
        .await;
        for (turn, typed) in AMBIGUOUS_COMMANDS.iter().enumerate() {
            let mut client = TcpStream::connect(fixture.at).await.unwrap();
            client.write_all(typed).await.unwrap();
            let heard = tokio::time::timeout(
                std::time::Duration::from_secs(5),
                client.read(&mut [0; 100]),
            )
            .await;
            assert!(heard.is_ok(), "{:?}", String::from_utf8_lossy(typed));
            drop(client);
            fixture.wait_served(2 * turn + 1).await;
            assert_eq!(
                next_replies(fixture.at).await.unwrap(),
                CLEAN_REPLIES,
                "{:?}",
                String::from_utf8_lossy(typed)
            );
            fixture.wait_served(2 * turn + 2).await;
        }
    });
}

#[test]
fn a_queued_setting_is_no_reply_for_others() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture =
            AdapterFixture::open(default_egress(EgressProtocol::Redis, server.at), &[]).await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        for (line, answer) in [
            ("MULTI", "+OK"),
            ("DISCARD x", "-ERR"),
            ("SELECT 5", "+QUEUED"),
            ("DISCARD", "+OK"),
        ] {
            client
                .write_all(format!("{line}\r\n").as_bytes())
                .await
                .unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n") {
                client.read_buf(&mut received).await.unwrap();
            }
            assert!(
                received.starts_with(answer.as_bytes()),
                "{line}: {}",
                String::from_utf8_lossy(&received)
            );
        }
        drop(client);
        fixture.wait_served(1).await;
        let mut next = TcpStream::connect(fixture.at).await.unwrap();
        next.write_all(b"SELECT 5\r\n").await.unwrap();
        let mut received = [0; 5];
        next.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"+OK\r\n");
    });
}

#[test]
fn without_the_adapter_the_check_fails() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        fill_server(server.at).await;
        let only = SharedBackend::default();
        let adapter =
            move |client, context| unclean_adapter::serve_uncleaned(client, context, only.clone());
        let fixture = AdapterFixture::open_with(
            default_egress(EgressProtocol::Redis, server.at),
            &[],
            adapter,
        )
        .await;
        assert!(!leaks_of(&fixture).await.is_empty());
    });
}
