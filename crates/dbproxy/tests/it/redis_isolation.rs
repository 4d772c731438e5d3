//! What one client of Redis leaves behind, the next one does not see; and the check would notice if it did.

use std::io;

use nearpath_dbproxy::redis::serve;
use nearpath_types::egress::{EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::redis::need;
use crate::seeded_rng::SeededRng;
use crate::server;
use crate::unclean_adapter::{self, SharedBackend};

const SEEDS: u64 = 50;

/// A client that leaves in a bad moment: what it says, and how many bytes of replies it reads.
fn random_commands(dice: &mut SeededRng) -> (Vec<u8>, usize) {
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
    let mut said = Vec::new();
    for _ in 0..=dice.below(3) {
        said.extend_from_slice(dice.pick::<&[u8]>(&all));
    }
    (said, usize::try_from(dice.below(2000)).unwrap())
}

/// Does mischief, and leaves in one of three ways.
async fn run_tenant(at: std::net::SocketAddr, dice: &mut SeededRng) -> Vec<u8> {
    let (said, reads) = random_commands(dice);
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(&said).await.unwrap();
    let mut part = vec![0; reads.max(1)];
    // Some replies never come.
    let _ = tokio::time::timeout(
        std::time::Duration::from_millis(dice.below(8)),
        client.read(&mut part),
    )
    .await;
    match dice.below(3) {
        0 => client.set_zero_linger().unwrap(),
        1 => client.shutdown().await.unwrap_or_default(),
        _ => {}
    }
    said
}

/// What a client that comes next sees of its connection; all of it is the same on a new connection.
async fn next_replies(at: std::net::SocketAddr) -> io::Result<String> {
    let mut client = TcpStream::connect(at).await?;
    client
        .write_all(
            b"ECHO mine\r\nCLIENT GETNAME\r\nGET where\r\nEXEC\r\nCLIENT TRACKINGINFO\r\nDISCARD\r\nECHO done\r\n",
        )
        .await?;
    let (mut said, mut part) = (Vec::new(), [0; 4096]);
    while !said.ends_with(b"done\r\n") {
        match client.read(&mut part).await? {
            0 => break,
            read => said.extend_from_slice(&part[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

const CLEAN_REPLIES: &str = "$4\r\nmine\r\n$-1\r\n$4\r\nzero\r\n-ERR EXEC without MULTI\r\n*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n-ERR DISCARD without MULTI\r\n$4\r\ndone\r\n";

/// How many of the seeds leaked.
async fn leaks_of(stage: &AdapterFixture) -> Vec<String> {
    let mut leaks = Vec::new();
    for seed in 0..SEEDS {
        let mut dice = SeededRng::new(seed);
        let said = run_tenant(stage.at, &mut dice).await;
        stage
            .wait_served(usize::try_from(2 * seed + 1).unwrap())
            .await;
        let seen = next_replies(stage.at)
            .await
            .unwrap_or_else(|error| error.to_string());
        if seen != CLEAN_REPLIES {
            leaks.push(format!(
                "seed {seed}: after {:?} the next one saw {seen:?}",
                String::from_utf8_lossy(&said)
            ));
        }
        stage
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
    let (mut said, mut part) = (0, [0; 64]);
    while said < 20 {
        said += admin.read(&mut part).await.unwrap();
    }
}

#[test]
fn the_next_client_sees_nothing_of_the_previous() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        fill_server(server.at).await;
        // One connection at most: the next client gets what the last one had, or a new one.
        let stage = AdapterFixture::open(
            EgressSpec {
                max: 1,
                ..default_egress(EgressProtocol::Redis, server.at)
            },
            &[],
            serve,
        )
        .await;
        let leaks = leaks_of(&stage).await;
        assert!(
            leaks.is_empty(),
            "{}",
            leaks[..leaks.len().min(3)].join("\n")
        );
        assert!(
            stage.ledger.resets.get() > 0,
            "nothing was ever cleaned: the test proves nothing"
        );
        assert!(
            u64::from(stage.backends.opened()) < 2 * SEEDS,
            "nothing was ever used again: the test proves nothing"
        );
    });
}

/// Commands as one may type them, which the server reads as its rules for lines have it.
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
        let stage = AdapterFixture::open(
            EgressSpec {
                max: 1,
                ..default_egress(EgressProtocol::Redis, server.at)
            },
            &[],
            serve,
        )
        .await;
        for (turn, typed) in AMBIGUOUS_COMMANDS.iter().enumerate() {
            let mut client = TcpStream::connect(stage.at).await.unwrap();
            client.write_all(typed).await.unwrap();
            let heard = tokio::time::timeout(
                std::time::Duration::from_secs(5),
                client.read(&mut [0; 100]),
            )
            .await;
            assert!(heard.is_ok(), "{:?}", String::from_utf8_lossy(typed));
            drop(client);
            stage.wait_served(2 * turn + 1).await;
            assert_eq!(
                next_replies(stage.at).await.unwrap(),
                CLEAN_REPLIES,
                "{:?}",
                String::from_utf8_lossy(typed)
            );
            stage.wait_served(2 * turn + 2).await;
        }
    });
}

#[test]
fn a_queued_setting_is_no_reply_for_others() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let stage =
            AdapterFixture::open(default_egress(EgressProtocol::Redis, server.at), &[], serve)
                .await;
        let mut client = TcpStream::connect(stage.at).await.unwrap();
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
            let mut said = Vec::new();
            while !said.ends_with(b"\r\n") {
                client.read_buf(&mut said).await.unwrap();
            }
            assert!(
                said.starts_with(answer.as_bytes()),
                "{line}: {}",
                String::from_utf8_lossy(&said)
            );
        }
        drop(client);
        stage.wait_served(1).await;
        let mut next = TcpStream::connect(stage.at).await.unwrap();
        next.write_all(b"SELECT 5\r\n").await.unwrap();
        let mut said = [0; 5];
        next.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"+OK\r\n");
    });
}

#[test]
fn without_the_adapter_the_check_fails() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        fill_server(server.at).await;
        let only = SharedBackend::default();
        let adapter =
            move |client, visit| unclean_adapter::serve_uncleaned(client, visit, only.clone());
        let stage = AdapterFixture::open(
            default_egress(EgressProtocol::Redis, server.at),
            &[],
            adapter,
        )
        .await;
        assert!(!leaks_of(&stage).await.is_empty());
    });
}
