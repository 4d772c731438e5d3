//! What a call costs its caller and its callee in CPU time: `cost [CALLS] [AT ONCE] [waits]`. Two threads, one domain, no
//! node. With a third word the handler waits for another task before it answers.

mod pair;

use std::time::Duration;

use nearpath::{CallOptions, FunctionServer, Request};
use pair::{Outcome, Pair, spent};
use tokio::task::JoinSet;

fn main() -> Outcome<()> {
    let mut words = std::env::args()
        .skip(1)
        .take(2)
        .map(|word| word.parse::<usize>());
    let (calls, at_once) = (
        words.next().unwrap_or(Ok(200_000))?,
        words.next().unwrap_or(Ok(32))?,
    );
    let waits = std::env::args().len() > 3;
    let pair = Pair::new("cost")?;
    let (callee, caller) = (pair.callee()?, pair.caller()?);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        let end = async { drop(stopped.await) };
        let handler = move |request: Request| async move {
            if waits {
                let _ = tokio::task::spawn_local(async {}).await;
            }
            request.into_body()
        };
        let served = FunctionServer::new(handler)
            .with_environment(callee)
            .run_until(end);
        served.map(|()| spent())
    });
    let asking =
        std::thread::spawn(move || nearpath::run_in(caller, ask(calls, at_once)).map(|()| spent()));
    let asked = asking.join().expect("it does not panic")?;
    let _ = stop.send(());
    let served = serving.join().expect("it does not panic")?;
    let each = |time: Duration| time.as_nanos() as f64 / 1e3 / calls as f64;
    println!(
        "caller {:.3} µs, callee {:.3} µs of CPU a call, {at_once} at once",
        each(asked),
        each(served)
    );
    Ok(())
}

async fn ask(calls: usize, at_once: usize) {
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        tasks.spawn_local(async move {
            for _ in 0..calls / at_once {
                let ask = CallOptions::default().shm_only();
                while nearpath::call_with("leaf", "a small body", ask.clone())
                    .await
                    .is_err()
                {
                    tokio::task::yield_now().await; // it is on its way into the domain
                }
            }
        });
    }
    tasks.join_all().await;
}
