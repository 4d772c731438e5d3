//! A thousand workers that start at once.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nearpath_wire::quic::{CallerConnection, EarlyData, QuicWorker};
use nearpath_wire::zero_rtt::{Provision, mint};
use tokio::sync::mpsc;

use crate::quic::fixture::{QuicFixture, TestCaller, echo, post, run_for};
use crate::quic::worker::provision_for;

const WORKERS: u64 = 1000;
/// Niceness of the issuer's thread.
const MINT_NICENESS: i32 = 10;
/// Enough for a thousand minted and performed handshakes, in a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Mints the provisions as a node's issuer does: on one low-priority thread, in order.
fn spawn_minting(
    fixture: Arc<QuicFixture>,
    caller: &TestCaller,
) -> mpsc::UnboundedReceiver<Provision> {
    let ((tell, minted), config) = (mpsc::unbounded_channel(), caller.config.clone());
    std::thread::spawn(move || {
        rustix::process::nice(MINT_NICENESS).unwrap(); // affects this thread only
        for number in 0..WORKERS {
            let mut provision = provision_for(&fixture, &fixture.worker(number));
            mint::mint_for_worker(&mut provision, config.clone(), Ipv4Addr::LOCALHOST.into())
                .unwrap();
            let _ = tell.send(provision); // fails only if the test has failed
        }
    });
    minted
}

/// Calls while sessions are being minted, with a limit. Returns the number of calls.
async fn calls_beside(
    connection: &CallerConnection,
    minting: &mpsc::UnboundedReceiver<Provision>,
) -> u32 {
    let mut calls = 0;
    while !minting.is_closed() && calls < 300 {
        let answer = connection
            .call_buffered(post("beside"), EarlyData::Allowed)
            .await
            .unwrap();
        assert!(answer.status().is_success());
        calls += 1;
    }
    calls
}

#[test]
fn all_get_their_sessions_while_calls_go_on_and_take_the_first_call_early() {
    run_for(LIMIT, async {
        let fixture = Arc::new(QuicFixture::new());
        let (caller, busy) = (fixture.caller(), fixture.worker(WORKERS).start(echo));
        let connection = caller.dial_running(&busy).await;
        let mut minting = spawn_minting(Arc::clone(&fixture), &caller);
        assert!(
            calls_beside(&connection, &minting).await > 0,
            "calls went on while there was something to mint"
        );
        let (dialer, mut provisions) = (caller.dialer(), Vec::new());
        while let Some(provision) = minting.recv().await {
            provisions.push(provision);
        }
        assert_eq!(provisions.len() as u64, WORKERS);
        for provision in provisions {
            let name = provision.credentials.name.clone();
            let worker = QuicWorker::start(
                UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
                provision,
                echo,
            )
            .unwrap();
            let connection = dialer
                .dial_worker(worker.local_addr().unwrap(), &name, LIMIT)
                .await
                .unwrap();
            let answer = connection
                .call_buffered(post("first"), EarlyData::Allowed)
                .await
                .unwrap();
            assert_eq!(answer.headers()["early"], "true", "{name}");
            connection.close();
        }
    });
}
