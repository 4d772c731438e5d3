//! What one client of Redis leaves behind, the next one does not see; and the check would notice if it did.

use std::io;

use nearpath_dbproxy::redis::serve;
use nearpath_types::egress::{Egress, Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::careless::{self, Only};
use crate::dice::Dice;
use crate::redis::need;
use crate::server;
use crate::stage::{Stage, egress, on_stage};

const SEEDS: u64 = 50;

/// A client that leaves in a bad moment: what it says, and how many bytes of replies it reads.
fn mischief(dice: &mut Dice) -> (Vec<u8>, usize) {
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
    for _ in 0..=dice.roll(3) {
        said.extend_from_slice(dice.of::<&[u8]>(&all));
    }
    (said, usize::try_from(dice.roll(2000)).unwrap())
}

/// Does mischief, and leaves in one of three ways.
async fn tenant(at: std::net::SocketAddr, dice: &mut Dice) -> Vec<u8> {
    let (said, reads) = mischief(dice);
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(&said).await.unwrap();
    let mut part = vec![0; reads.max(1)];
    // Some replies never come.
    let _ = tokio::time::timeout(std::time::Duration::from_millis(dice.roll(8)), client.read(&mut part)).await;
    match dice.roll(3) {
        0 => client.set_zero_linger().unwrap(),
        1 => client.shutdown().await.unwrap_or_default(),
        _ => {}
    }
    said
}

/// What a client that comes next sees of its connection; all of it is the same on a new connection.
async fn seen(at: std::net::SocketAddr) -> io::Result<String> {
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

const CLEAN: &str = "$4\r\nmine\r\n$-1\r\n$4\r\nzero\r\n-ERR EXEC without MULTI\r\n*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n-ERR DISCARD without MULTI\r\n$4\r\ndone\r\n";

/// How many of the seeds leaked.
async fn leaks(stage: &Stage) -> Vec<String> {
    let mut leaks = Vec::new();
    for seed in 0..SEEDS {
        let mut dice = Dice::new(seed);
        let said = tenant(stage.at, &mut dice).await;
        stage.served(usize::try_from(2 * seed + 1).unwrap()).await;
        let seen = seen(stage.at).await.unwrap_or_else(|error| error.to_string());
        if seen != CLEAN {
            leaks.push(format!("seed {seed}: after {:?} the next one saw {seen:?}", String::from_utf8_lossy(&said)));
        }
        stage.served(usize::try_from(2 * seed + 2).unwrap()).await;
    }
    leaks
}

async fn furnished(at: std::net::SocketAddr) {
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
fn the_next_client_sees_nothing_of_the_last() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        furnished(server.at).await;
        // One connection at most: the next client gets what the last one had, or a new one.
        let stage = Stage::open(Egress { max: 1, ..egress(Protocol::Redis, server.at) }, &[], serve).await;
        let leaks = leaks(&stage).await;
        assert!(leaks.is_empty(), "{}", leaks[..leaks.len().min(3)].join("\n"));
        assert!(stage.ledger.resets.get() > 0, "nothing was ever cleaned: the test proves nothing");
        assert!(u64::from(stage.backends.opened()) < 2 * SEEDS, "nothing was ever used again: the test proves nothing");
    });
}

/// Commands as one may type them, which the server reads as its rules for lines have it.
const TYPED: [&[u8]; 7] = [
    b"\"SELECT\" 5\r\n",
    b"'select' 5\r\n",
    b"\"\\x53ELECT\" 5\r\n",
    b"SELECT\x0b5\r\n",
    b"\"MULTI\"\r\n",
    b"\"CLIENT\" SETNAME leaked\r\n",
    b"\"SUBSCRIBE\" leaked\r\n",
];

#[test]
fn a_command_that_is_typed_oddly_leaves_nothing_either() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        furnished(server.at).await;
        let stage = Stage::open(Egress { max: 1, ..egress(Protocol::Redis, server.at) }, &[], serve).await;
        for (turn, typed) in TYPED.iter().enumerate() {
            let mut client = TcpStream::connect(stage.at).await.unwrap();
            client.write_all(typed).await.unwrap();
            let heard = tokio::time::timeout(std::time::Duration::from_secs(5), client.read(&mut [0; 100])).await;
            assert!(heard.is_ok(), "{:?}", String::from_utf8_lossy(typed));
            drop(client);
            stage.served(2 * turn + 1).await;
            assert_eq!(seen(stage.at).await.unwrap(), CLEAN, "{:?}", String::from_utf8_lossy(typed));
            stage.served(2 * turn + 2).await;
        }
    });
}

#[test]
fn a_setting_that_is_queued_is_no_answer_for_others() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let stage = Stage::open(egress(Protocol::Redis, server.at), &[], serve).await;
        let mut client = TcpStream::connect(stage.at).await.unwrap();
        for (line, answer) in [("MULTI", "+OK"), ("DISCARD x", "-ERR"), ("SELECT 5", "+QUEUED"), ("DISCARD", "+OK")] {
            client.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
            let mut said = Vec::new();
            while !said.ends_with(b"\r\n") {
                client.read_buf(&mut said).await.unwrap();
            }
            assert!(said.starts_with(answer.as_bytes()), "{line}: {}", String::from_utf8_lossy(&said));
        }
        drop(client);
        stage.served(1).await;
        let mut next = TcpStream::connect(stage.at).await.unwrap();
        next.write_all(b"SELECT 5\r\n").await.unwrap();
        let mut said = [0; 5];
        next.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"+OK\r\n");
    });
}

#[test]
fn without_the_adapter_the_check_goes_red() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        furnished(server.at).await;
        let only = Only::default();
        let adapter = move |client, visit| careless::serve(client, visit, only.clone());
        let stage = Stage::open(egress(Protocol::Redis, server.at), &[], adapter).await;
        assert!(!leaks(&stage).await.is_empty());
    });
}
