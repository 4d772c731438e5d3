//! State that one client of an HTTP server leaves behind does not reach the next. The check is
//! shown to fail without the adapter.

use nearpath_types::egress::{EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::redis::need;
use crate::server;
use crate::unclean_adapter::{self, SharedBackend};
use nearpath_testkit::seeded_rng::SeededRng;

const SEEDS: u64 = 50;

/// Runs a client that leaves at a bad moment.
async fn run_tenant(at: std::net::SocketAddr, rng: &mut SeededRng) -> String {
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
    let text = (0..=rng.below(2))
        .map(|_| *rng.pick(&texts))
        .collect::<String>();
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let mut part = vec![0; usize::try_from(rng.below(3000)).unwrap() + 1];
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
    text
}

async fn next_response(at: std::net::SocketAddr, seed: u64) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client
        .write_all(
            format!("GET /say/mine{seed} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await
        .unwrap();
    let mut received = Vec::new();
    let _ = client.read_to_end(&mut received).await;
    String::from_utf8_lossy(&received).into_owned()
}

async fn leaks_of(fixture: &AdapterFixture) -> Vec<String> {
    let mut leaks = Vec::new();
    for seed in 0..SEEDS {
        let text = run_tenant(fixture.at, &mut SeededRng::new(seed)).await;
        let seen = next_response(fixture.at, seed).await;
        if !(seen.starts_with("HTTP/1.1 200 OK\r\n")
            && seen.ends_with(&format!("\r\n\r\nGET /say/mine{seed} h  \n")))
            || seen.contains("leaked")
        {
            leaks.push(format!(
                "seed {seed}: after {text:?} the next one saw {:?}",
                seen.get(..300).unwrap_or(&seen)
            ));
        }
    }
    leaks
}

#[test]
fn the_next_client_sees_nothing_of_the_previous() {
    run_local(async {
        let server = need!(server::start_nginx(75).await, "nginx");
        let fixture = AdapterFixture::open(
            EgressSpec {
                max: 1,
                ..default_egress(EgressProtocol::Http, server.at)
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
            u64::from(fixture.backends.opened()) < 2 * SEEDS,
            "nothing was ever used again: the test proves nothing"
        );
    });
}

#[test]
fn without_the_adapter_the_check_fails() {
    run_local(async {
        let server = need!(server::start_nginx(75).await, "nginx");
        let only = SharedBackend::default();
        let adapter =
            move |client, context| unclean_adapter::serve_uncleaned(client, context, only.clone());
        let fixture = AdapterFixture::open_with(
            default_egress(EgressProtocol::Http, server.at),
            &[],
            adapter,
        )
        .await;
        assert!(!leaks_of(&fixture).await.is_empty());
    });
}
