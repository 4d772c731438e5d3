//! A thousand workers start at once.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nearpath_wire::early::{Minter, Provision, mint};
use nearpath_wire::quic::{Early, Line, Worker};
use tokio::sync::mpsc;

use crate::site::{Caller, Site, echo, post, run_for};
use crate::worker::provision;

const WORKERS: u64 = 1000;
/// A thousand handshakes, minted and made, of an unoptimised build on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Orders what each worker is started with, as a node does; what comes is in the order of asking, as far as two threads keep it.
fn order(site: Arc<Site>, caller: &Caller, minter: &Minter) -> mpsc::UnboundedReceiver<Provision> {
    let (tell, minted) = mpsc::unbounded_channel();
    for number in 0..WORKERS {
        let (site, config, tell) = (Arc::clone(&site), caller.config.clone(), tell.clone());
        let work = move || {
            let mut provision = provision(&site, &site.worker(number));
            mint::for_worker(&mut provision, config, Ipv4Addr::LOCALHOST.into()).map_err(drop)?;
            tell.send(provision).map_err(drop)
        };
        minter.order(work).unwrap().keep();
    }
    minted
}

/// Calls while something waits to be minted, but not for ever; how many calls there were.
async fn calls_beside(line: &Line, minter: &Minter) -> u32 {
    let mut calls = 0;
    while minter.numbers().waiting > 0 && calls < 300 {
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
        let minter = Minter::start(Minter::THREADS, Minter::ROOM).unwrap();
        let mut minted = order(Arc::clone(&site), &caller, &minter);
        assert!(calls_beside(&line, &minter).await > 0, "calls went on while there was something to mint");
        let dialer = caller.dialer();
        let mut provisions = Vec::new();
        while let Some(provision) = minted.recv().await {
            provisions.push(provision);
        }
        for provision in provisions {
            let name = provision.credentials.name.clone();
            let worker = Worker::start(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), provision, echo).unwrap();
            let line = dialer.dial(worker.addr().unwrap(), &name, LIMIT).await.unwrap();
            let answer = line.call_whole(post("first"), Early::Allowed).await.unwrap();
            assert_eq!(answer.headers()["early"], "true", "{name}");
            line.close();
        }
        let numbers = minter.numbers();
        assert_eq!((numbers.done, numbers.failed, numbers.refused), (WORKERS, 0, 0));
    });
}
