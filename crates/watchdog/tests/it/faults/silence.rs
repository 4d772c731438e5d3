//! Silent networks: for ever, for a while, or over UDP alone.

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nearpath_testkit::lab::LinkConditions;
use nearpath_testkit::{need_root, skip};
use nearpath_wire::quic::{EarlyData, QuicCallError, QuicDialError, StreamBodyError, config};

use crate::faults::caller::check_echo;
use crate::faults::handler::HELD_PATH;
use crate::faults::two_machines::{TwoMachines, calm_link, run_on_one_thread};

const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

/// A call that is at the worker when the link is cut.
async fn cut_during_call(
    place: &TwoMachines,
) -> (u32, tokio::task::JoinHandle<Result<u32, QuicCallError>>) {
    let line = place.caller.dial().await;
    let (number, request) = place.caller.post(HELD_PATH, 1000);
    let call = tokio::task::spawn_local(async move { check_echo(&line, number, request).await });
    place.handler.wait_held().await;
    place.link.cut_link();
    place.handler.release_one();
    (number, call)
}

#[test]
fn a_machine_that_falls_silent_ends_its_calls() {
    need_root!();
    run_on_one_thread(async {
        let mut place = TwoMachines::new(&calm_link(), 0).await;
        place
            .caller
            .config
            .transport_config(config::caller_transport(SHORT_TIMEOUT)); // half a minute otherwise
        let (number, call) = cut_during_call(&place).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(error, QuicCallError::Interrupted(_))
                && error.to_string().contains("timed out"),
            "{error}"
        );
        assert_eq!(
            place.handler.run_count(number),
            1,
            "so it had better not be said that it did not run"
        );
        assert!(
            place
                .link_counts(|counts| counts.cut)
                .iter()
                .any(|cut| *cut > 0)
        );
    });
}

/// A call with a streamed body cannot be repeated, so its caller must learn of the failure soon,
/// not when the connection ends.
#[test]
fn a_body_that_nobody_acknowledges_any_more_ends_in_seconds() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(&calm_link(), 0).await;
        let (cut, whole) = (place.caller.dial().await, place.caller.dial().await);
        let (more, coming) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
        let coming = futures_util::stream::unfold(coming, async |mut coming| {
            Some((coming.recv().await?, coming))
        });
        let body = StreamBody::new(
            coming.map(|piece| Ok::<_, std::convert::Infallible>(Frame::data(piece))),
        );
        let (number, request) = place.caller.post(HELD_PATH, 0);
        let (parts, _) = request.into_parts();
        let call = cut.call(
            http::Request::from_parts(parts, Box::pin(body)),
            EarlyData::Never,
        );
        let meanwhile = async {
            more.send(Bytes::from_static(b"begun")).unwrap();
            place.handler.wait_held().await;
            place.link.cut_link();
            more.send(Bytes::from_static(b"goes nowhere")).unwrap();
        };
        let (result, ()) = tokio::join!(call, meanwhile);
        let error = result.unwrap_err();
        assert!(
            matches!(
                error,
                QuicCallError::Interrupted(StreamBodyError::Stalled(_))
            ),
            "{error}"
        );
        assert!(
            cut.is_stalled() && !whole.is_stalled(),
            "a line on which nobody calls says nothing"
        );
        assert_eq!(place.handler.run_count(number), 1);
    });
}

/// Silence is that nothing is acknowledged, not that nothing is answered.
#[test]
fn a_handler_that_takes_longer_than_silence_is_waited_for() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(
            &LinkConditions {
                loss: 0.05,
                ..calm_link()
            },
            0,
        )
        .await;
        let line = place.caller.dial().await;
        let (number, request) = place.caller.post(HELD_PATH, 100_000);
        let go = async {
            place.handler.wait_held().await;
            tokio::time::sleep(Duration::from_secs(12)).await; // a sign of life goes after ten
            place.handler.release_one();
        };
        let (answered, ()) = tokio::join!(check_echo(&line, number, request), go);
        assert_eq!(answered.unwrap(), number);
        assert!(!line.is_stalled());
    });
}

/// A call whose handler takes four times as long as a silent connection lives.
async fn call_slow_handler(place: &TwoMachines) -> Result<u32, QuicCallError> {
    let line = place.caller.dial().await;
    let (number, request) = place.caller.post(HELD_PATH, 1000);
    let go = async {
        place.handler.wait_held().await;
        tokio::time::sleep(4 * SHORT_TIMEOUT).await; // the duration of the handler
        place.handler.release_one();
    };
    tokio::join!(check_echo(&line, number, request), go).0
}

#[test]
fn a_call_may_take_longer_than_a_silent_connection_lives() {
    need_root!();
    run_on_one_thread(async {
        let mut place = TwoMachines::new(&calm_link(), 0).await;
        place
            .caller
            .config
            .transport_config(config::caller_transport(SHORT_TIMEOUT));
        call_slow_handler(&place).await.unwrap();
        place
            .caller
            .config
            .transport_config(config::worker_transport(SHORT_TIMEOUT)); // the control: no sign of life
        let error = call_slow_handler(&place).await.unwrap_err();
        assert!(error.to_string().contains("timed out"), "{error}");
    });
}

#[test]
fn a_deadline_is_kept_also_in_silence() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(&calm_link(), 0).await;
        let (number, call) = cut_during_call(&place).await;
        let abort = call.abort_handle();
        tokio::time::timeout(SHORT_TIMEOUT, call).await.unwrap_err();
        abort.abort(); // as who has waited long enough does
        assert_eq!(place.handler.run_count(number), 1);
        place.link.restore_link();
        let line = place.caller.dial().await;
        place.caller.call(&line, 1000).await.unwrap();
    });
}

#[test]
fn a_link_that_is_down_for_two_seconds() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(&calm_link(), 2).await;
        let (number, held) = cut_during_call(&place).await;
        let before = place.caller.dial().await; // with a session: its call is sent into the silence
        assert!(before.is_early());
        let call = place.caller.call(&before, 1 << 20);
        let mend = async {
            tokio::time::sleep(Duration::from_secs(2)).await; // the duration of the outage
            place.link.restore_link();
        };
        let (early, ()) = tokio::join!(call, mend);
        let early = early.unwrap();
        assert_eq!(held.await.unwrap().unwrap(), number);
        assert_eq!(
            (
                place.handler.run_count(number),
                place.handler.run_count(early)
            ),
            (1, 1)
        );
        assert!(
            place
                .link_counts(|counts| counts.cut)
                .iter()
                .all(|cut| *cut > 0),
            "the first flight was lost"
        );
    });
}

#[test]
fn udp_is_blocked() {
    need_root!();
    if Command::new("nft").arg("--version").output().is_err() {
        skip!("nft is missing");
    }
    run_on_one_thread(async {
        let place = TwoMachines::new(&calm_link(), 1).await;
        let rules = "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in meta l4proto udp drop";
        let ruled = place
            .worker_node
            .run_program(Command::new("nft").arg(rules))
            .unwrap();
        assert!(ruled.status.success(), "{ruled:?}");
        let with = place.caller.try_dial(SHORT_TIMEOUT).await.unwrap();
        assert!(with.is_early());
        let error = place.caller.call(&with, 100).await.unwrap_err();
        assert!(
            matches!(error, QuicCallError::NoResponse(SHORT_TIMEOUT)),
            "{error}"
        );
        place.caller.sessions.clear_all();
        let without = place.caller.try_dial(SHORT_TIMEOUT).await.unwrap_err();
        assert!(
            matches!(
                without,
                QuicDialError::Timeout {
                    limit: SHORT_TIMEOUT,
                    ..
                }
            ),
            "{without}"
        );
        assert_eq!(place.handler.call_count(), 0, "nothing ran");
        assert_eq!(call_over_tcp(&place).await, 200, "the machine is there");
        assert_eq!(place.handler.call_count(), 1);
    });
}

async fn call_over_tcp(place: &TwoMachines) -> u16 {
    let worker = place.caller.worker;
    let stream = place
        .caller_node
        .enter(|| std::net::TcpStream::connect(worker))
        .unwrap();
    stream.set_nonblocking(true).unwrap();
    let stream = TokioIo::new(tokio::net::TcpStream::from_std(stream).unwrap());
    let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(stream).await.unwrap();
    tokio::task::spawn_local(connection);
    let (_, mut request) = place.caller.post("/", 100);
    request
        .headers_mut()
        .insert(http::header::HOST, "worker".parse().unwrap());
    let answer = sender.send_request(request.map(Full::new)).await.unwrap();
    let status = answer.status().as_u16();
    answer.into_body().collect().await.unwrap();
    status
}

/// Control of the counters here: a caller that repeats a broken call without proof does run it
/// twice.
#[test]
fn repeating_a_broken_call_runs_it_twice() {
    need_root!();
    run_on_one_thread(async {
        let mut place = TwoMachines::new(&calm_link(), 0).await;
        place
            .caller
            .config
            .transport_config(config::caller_transport(SHORT_TIMEOUT));
        let (number, call) = cut_during_call(&place).await;
        call.await.unwrap().unwrap_err();
        place.link.restore_link();
        let line = place.caller.dial().await;
        let (_, mut again) = place.caller.post("/", 1000);
        again
            .headers_mut()
            .insert(crate::faults::handler::NUMBER_HEADER, number.into());
        check_echo(&line, number, again).await.unwrap();
        assert_eq!(place.handler.run_count(number), 2);
        assert!(!place.handler.all_ran_once());
    });
}
