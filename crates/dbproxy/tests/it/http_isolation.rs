//! What one client of an HTTP server leaves behind, the next one does not see; and the check would notice if it did.

use nearpath_dbproxy::http::serve;
use nearpath_types::egress::{Egress, Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::careless::{self, Only};
use crate::dice::Dice;
use crate::redis::need;
use crate::server;
use crate::stage::{Stage, egress, on_stage};

const SEEDS: u64 = 50;

/// A client that leaves in a bad moment.
async fn tenant(at: std::net::SocketAddr, dice: &mut Dice) -> String {
    let texts = [
        "GET /big HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /say/leaked HTTP/1.1\r\nHost: h\r\n\r\nGET /say/leaked HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /say/leaked HTTP/1.1\r\nHost: h\r\nX-Half",
        "PUT /put/leaked HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nhalf of it",
        "PUT /put/leaked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf",
        "POST /say/leaked HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nGET /say/smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /say/leaked HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /say/smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        "HEAD /big HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /none HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab",
    ];
    let text = (0..=dice.roll(2)).map(|_| *dice.of(&texts)).collect::<String>();
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let mut part = vec![0; usize::try_from(dice.roll(3000)).unwrap() + 1];
    let _ = tokio::time::timeout(std::time::Duration::from_millis(dice.roll(8)), client.read(&mut part)).await;
    match dice.roll(3) {
        0 => client.set_zero_linger().unwrap(),
        1 => client.shutdown().await.unwrap_or_default(),
        _ => {}
    }
    text
}

async fn seen(at: std::net::SocketAddr, seed: u64) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client
        .write_all(format!("GET /say/mine{seed} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut said = Vec::new();
    let _ = client.read_to_end(&mut said).await;
    String::from_utf8_lossy(&said).into_owned()
}

async fn leaks(stage: &Stage) -> Vec<String> {
    let mut leaks = Vec::new();
    for seed in 0..SEEDS {
        let text = tenant(stage.at, &mut Dice::new(seed)).await;
        let seen = seen(stage.at, seed).await;
        if !(seen.starts_with("HTTP/1.1 200 OK\r\n") && seen.ends_with(&format!("\r\n\r\nGET /say/mine{seed} h  \n")))
            || seen.contains("leaked")
        {
            leaks.push(format!("seed {seed}: after {text:?} the next one saw {:?}", seen.get(..300).unwrap_or(&seen)));
        }
    }
    leaks
}

#[test]
fn the_next_client_sees_nothing_of_the_last() {
    on_stage(async {
        let server = need!(server::nginx(75).await, "nginx");
        let stage = Stage::open(Egress { max: 1, ..egress(Protocol::Http, server.at) }, &[], serve).await;
        let leaks = leaks(&stage).await;
        assert!(leaks.is_empty(), "{}", leaks[..leaks.len().min(3)].join("\n"));
        assert!(u64::from(stage.backends.opened()) < 2 * SEEDS, "nothing was ever used again: the test proves nothing");
    });
}

#[test]
fn without_the_adapter_the_check_goes_red() {
    on_stage(async {
        let server = need!(server::nginx(75).await, "nginx");
        let only = Only::default();
        let adapter = move |client, visit| careless::serve(client, visit, only.clone());
        let stage = Stage::open(egress(Protocol::Http, server.at), &[], adapter).await;
        assert!(!leaks(&stage).await.is_empty());
    });
}
