//! What bodies cost that are copied, written where they go out, and passed on: `copies [ROUNDS]`. A caller and a callee, two
//! threads of one domain, no node; the three ways take turns, so that what else the machine does meets all alike.

mod pair;

use std::time::Duration;

use nearpath::{CallBody, CallOptions, FunctionServer, Request, Response};
use nearpath_shm::copies;
use pair::{Outcome, Pair};

const SIZES: [usize; 3] = [1 << 10, 64 << 10, 1_000_000];
/// Bytes that each way sends in a round.
const ROUND: usize = 16 << 20;

/// How a body is made, and what the callee answers with.
#[derive(Debug, Clone, Copy)]
enum PayloadMode {
    /// In private memory on both sides.
    Copied,
    /// In a draft on both sides.
    Drafted,
    /// The caller's draft comes back as it is.
    Passed,
}

const PAYLOAD_MODES: [PayloadMode; 3] = [
    PayloadMode::Copied,
    PayloadMode::Drafted,
    PayloadMode::Passed,
];

impl PayloadMode {
    fn body(self, bytes: usize) -> CallBody {
        match self {
            Self::Copied => {
                let mut body = vec![0; bytes];
                body.fill(7);
                body.into()
            }
            Self::Drafted | Self::Passed => {
                let mut draft = nearpath::draft(bytes);
                draft.fill(7);
                draft.into()
            }
        }
    }

    fn path(self) -> &'static str {
        ["/copied", "/drafted", "/passed"][self as usize]
    }

    fn answer(request: Request) -> CallBody {
        let bytes = request.body().len();
        match request.path() {
            "/copied" => Self::Copied.body(bytes),
            "/drafted" => Self::Drafted.body(bytes),
            "/passed" => request.into_body(),
            _ => own()
                .iter()
                .flat_map(|n| n.to_le_bytes())
                .collect::<Vec<u8>>()
                .into(),
        }
    }
}

/// CPU time in ns and bytes copied, of both sides together.
type CallCost = [u64; 2];

fn main() -> Outcome<()> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(20), |word| word.parse::<usize>())?;
    let pair = Pair::new("copies")?;
    let (callee, caller) = (pair.callee()?, pair.caller()?);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        let end = async { drop(stopped.await) };
        let handler = async |request: Request| Response::new(PayloadMode::answer(request));
        FunctionServer::new(handler)
            .with_environment(callee)
            .run_until(end)
    });
    nearpath::run_in(caller, measure(rounds))??;
    let _ = stop.send(());
    Ok(serving.join().expect("it does not panic")?)
}

async fn measure(rounds: usize) -> Result<(), nearpath::Error> {
    while call("/spent", CallBody::default()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await; // it is on its way into the domain
    }
    println!("there and back          CPU of both sides, bytes copied");
    for bytes in SIZES {
        let mut costs = [[0; 2]; PAYLOAD_MODES.len()];
        let calls = (ROUND / bytes).clamp(16, 4096);
        for _ in 0..rounds {
            for way in PAYLOAD_MODES {
                let before = cost().await?;
                for _ in 0..calls {
                    let answer = call(way.path(), way.body(bytes)).await?;
                    assert!(answer.body().len() == bytes && answer.body().last() == Some(&7));
                }
                let after = cost().await?;
                for (all, (after, before)) in costs[way as usize]
                    .iter_mut()
                    .zip(after.into_iter().zip(before))
                {
                    *all += after - before;
                }
            }
        }
        for (way, [time, copied]) in PAYLOAD_MODES.into_iter().zip(costs) {
            let each = |all: u64| all as f64 / (rounds * calls) as f64;
            let name = format!("{way:?}");
            println!(
                "{bytes:>8} B  {name:<8} {:>10.2} µs {:>12.0} B",
                each(time) / 1e3,
                each(copied)
            );
        }
    }
    Ok(())
}

async fn call(path: &str, body: CallBody) -> Result<Response, nearpath::Error> {
    nearpath::call_with("leaf", body, CallOptions::default().path(path).shm_only()).await
}

async fn cost() -> Result<CallCost, nearpath::Error> {
    let answer = call("/spent", CallBody::default()).await?;
    let theirs = answer
        .body()
        .as_chunks::<8>()
        .0
        .iter()
        .map(|n| u64::from_le_bytes(*n));
    let mut sum = own();
    sum.iter_mut()
        .zip(theirs)
        .for_each(|(own, theirs)| *own += theirs);
    Ok(sum)
}

/// What this thread has spent, and copied.
fn own() -> CallCost {
    [pair::spent().as_nanos() as u64, copies::copied_bytes()]
}
