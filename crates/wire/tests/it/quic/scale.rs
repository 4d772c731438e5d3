//! A thousand workers start at once.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nearpath_wire::early::{Provision, mint};
use nearpath_wire::quic::{Early, Line, Worker};
use tokio::sync::mpsc;

use crate::quic::site::{Caller, Site, echo, post, run_for};
use crate::quic::worker::provision;

const WORKERS: u64 = 1000;
/// What the issuer adds to its thread's niceness.
const NICE: i32 = 10;
/// A thousand handshakes, minted and made, of an unoptimised build on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Mints what each worker is started with as the issuer of a node does: one thread of low priority, first come, first served.
fn minted(site: Arc<Site>, caller: &Caller) -> mpsc::UnboundedReceiver<Provision> {
    let ((tell, minted), config) = (mpsc::unbounded_channel(), caller.config.clone());
    std::thread::spawn(move || {
        rustix::process::nice(NICE).unwrap(); // of this thread alone
        for number in 0..WORKERS {
            let mut provision = provision(&site, &site.worker(number));
            mint::for_worker(&mut provision, config.clone(), Ipv4Addr::LOCALHOST.into()).unwrap();
            let _ = tell.send(provision); // a test that failed does not wait for it
        }
    });
    minted
}

/// Calls while something waits to be minted, but not for ever; how many calls there were.
async fn calls_beside(line: &Line, minting: &mpsc::UnboundedReceiver<Provision>) -> u32 {
    let mut calls = 0;
    while !minting.is_closed() && calls < 300 {
        let answer = line.call_whole(post("beside"), Early::Allowed).await.unwrap();
        assert!(answer.status().is_success());
        calls += 1;
    }
    calls
}

#[test]
fn all_get_their_sessions_while_calls_go_on_and_take_the_first_call_early() {
    run_for(LIMIT, async {
        let site = Arc::new(Site::new());
        let (caller, busy) = (site.caller(), site.worker(WORKERS).start(echo));
        let line = caller.dial(&busy).await;
        let mut minting = minted(Arc::clone(&site), &caller);
        assert!(calls_beside(&line, &minting).await > 0, "calls went on while there was something to mint");
        let (dialer, mut provisions) = (caller.dialer(), Vec::new());
        while let Some(provision) = minting.recv().await {
            provisions.push(provision);
        }
        assert_eq!(provisions.len() as u64, WORKERS);
        for provision in provisions {
            let name = provision.credentials.name.clone();
            let worker = Worker::start(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), provision, echo).unwrap();
            let line = dialer.dial(worker.addr().unwrap(), &name, LIMIT).await.unwrap();
            let answer = line.call_whole(post("first"), Early::Allowed).await.unwrap();
            assert_eq!(answer.headers()["early"], "true", "{name}");
            line.close();
        }
    });
}
