//! Plain connections and HTTP: new ones, warm ones, and those that are looked at for nothing.

use std::time::Duration;

use super::{PoolArgs, build_network, round_trip_name, run_local};
use crate::command::quic::NetworkPlace;
use crate::compare::{BenchComparison, BetterDirection, RatioGoal, RoundSample};
use crate::pool::dial::{DialPlan, DialResult, RequestProtocol};
use crate::pool::setup::{self, PoolNetwork, PoolNode};
use crate::remote::BenchError;
use crate::tally::RequestTally;

/// The function that has a pool; the one for which nothing is kept warm, whose calls are not
/// inspected; and the one that speaks HTTP alone, which need not be inspected either.
const FUNCTION_NAMES: [&str; 3] = ["pooled", "cold", "web"];
/// Round trip at which the published figures were taken.
const PUBLISHED_PLACE: NetworkPlace = NetworkPlace::Link(Duration::from_micros(250));
/// At which flows of some size are compared.
const FLOW_PLACE: NetworkPlace = NetworkPlace::Link(Duration::from_millis(1));

/// Origins of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectOrigin {
    /// A program of the machine's, by itself.
    Direct,
    /// A function, whose socket is replaced by a warm one.
    Pool,
    /// A function whose socket cannot be: the node carries what it says, over a warm connection.
    Exit,
}

/// In the order of [`ConnectOrigin`].
const CONNECT_ORIGINS: [(ConnectOrigin, &str); 3] = [
    (ConnectOrigin::Direct, "direct"),
    (ConnectOrigin::Pool, "pool"),
    (ConnectOrigin::Exit, "pool, carried"),
];

/// Every case at this distance.
pub(super) fn measure(
    args: &PoolArgs,
    place: NetworkPlace,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let ground = build_network(args, place)?;
    let near = ground.near.clone();
    near.enter(|| {
        run_local(
            ConnectionCases {
                args,
                place,
                ground: &ground,
            }
            .measure_all(comparison),
        )
    })
}

struct ConnectionCases<'a> {
    args: &'a PoolArgs,
    place: NetworkPlace,
    ground: &'a PoolNetwork,
}

/// Sizes of a request and its answer.
#[derive(Debug, Clone, Copy)]
struct FlowSize {
    name: &'static str,
    speech: RequestProtocol,
    down: u32,
    up: u32,
}

/// Flows of some size. A plain connection is new to its server whoever opened it, so its window is
/// that of a new one; one of HTTP was used before.
const FLOW_SIZES: [FlowSize; 6] = [
    FlowSize {
        name: "100 kB down",
        speech: RequestProtocol::Plain,
        down: 100_000,
        up: 0,
    },
    FlowSize {
        name: "1 MB down",
        speech: RequestProtocol::Plain,
        down: 1_000_000,
        up: 0,
    },
    FlowSize {
        name: "1 MB up",
        speech: RequestProtocol::Plain,
        down: 1,
        up: 1_000_000,
    },
    FlowSize {
        name: "HTTP, 100 kB down",
        speech: RequestProtocol::Http,
        down: 100_000,
        up: 0,
    },
    FlowSize {
        name: "HTTP, 1 MB down",
        speech: RequestProtocol::Http,
        down: 1_000_000,
        up: 0,
    },
    FlowSize {
        name: "HTTP, 1 MB up",
        speech: RequestProtocol::Http,
        down: 1,
        up: 1_000_000,
    },
];

impl ConnectionCases<'_> {
    async fn measure_all(&self, comparison: &mut BenchComparison) -> Result<(), BenchError> {
        let stage = PoolNode::start(&[]).await?;
        let PoolNetwork {
            server, other, web, ..
        } = self.ground;
        // The same server under another port: the same destination cannot be both pooled and not.
        let cold = format!("{other} protocol=tcp warm=0");
        let egress = [
            format!("{server} protocol=tcp, {cold}"),
            cold,
            format!("{web} protocol=http"),
        ];
        for (name, egress) in FUNCTION_NAMES.iter().zip(egress) {
            stage.deploy_dialler(name, &egress).await?;
        }
        for (name, speech) in [
            ("", RequestProtocol::Plain),
            ("HTTP: ", RequestProtocol::Http),
        ] {
            self.measure_first_byte(&stage, name, speech, comparison)
                .await?;
        }
        self.measure_overhead(&stage, comparison).await?;
        for flow in FLOW_SIZES {
            self.measure_flow(&stage, flow, comparison).await?;
        }
        Ok(())
    }

    fn flow_plan(&self, flow: FlowSize, count: usize) -> DialPlan {
        let to = if flow.speech == RequestProtocol::Http {
            self.ground.web
        } else {
            self.ground.server
        };
        let FlowSize {
            speech, down, up, ..
        } = flow;
        DialPlan {
            to: Some(to.to_string()),
            count,
            speech,
            down,
            up,
            // An unbound socket can be replaced by a pooled connection; `ConnectOrigin::Exit` binds
            // to prevent that.
            bound: false,
            pause: self.args.pause,
        }
    }

    fn small_plan(&self, speech: RequestProtocol) -> DialPlan {
        self.flow_plan(
            FlowSize {
                name: "",
                speech,
                down: 100,
                up: 0,
            },
            self.args.count,
        )
    }

    async fn measure_first_byte(
        &self,
        stage: &PoolNode,
        name: &str,
        speech: RequestProtocol,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let case = format!(
            "{name}socket() to first byte, {}",
            round_trip_name(self.place)
        );
        if !self.args.wants_case(&case) {
            return Ok(());
        }
        let plan = self.small_plan(speech);
        let ways = if speech == RequestProtocol::Http {
            &CONNECT_ORIGINS[..2]
        } else {
            &CONNECT_ORIGINS[..]
        };
        self.compare_origins(stage, &case, ways, &plan, |found| &found.first, comparison)
            .await?;
        // On shorter links the handshake that the pool saves is no longer most of the time.
        let goal = if self.place >= PUBLISHED_PLACE {
            0.55
        } else {
            0.9
        };
        comparison.add_ratio(
            &format!("p50, {case}, pool/direct"),
            &case,
            "pool",
            "direct",
            lower_goal(goal),
        );
        Ok(())
    }

    /// A function connects to where nothing is kept warm for it: to itself, and through the node.
    async fn measure_overhead(
        &self,
        stage: &PoolNode,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let own = DialPlan {
            to: None,
            ..self.small_plan(RequestProtocol::Plain)
        };
        let cold = DialPlan {
            to: Some(self.ground.other.to_string()),
            ..self.small_plan(RequestProtocol::Plain)
        };
        for (where_to, plan) in [("to itself", own), ("not pooled", cold)] {
            let case = format!(
                "socket() to first byte, {where_to}, {}",
                round_trip_name(self.place)
            );
            if !self.args.wants_case(&case)
                // A connection to itself is the same at every distance: once is enough.
                || (plan.to.is_none() && self.place != NetworkPlace::Loopback)
            {
                continue;
            }
            let variants = ["not looked at", "looked at"];
            let one = async |index: usize| {
                let found = stage.dial_from(FUNCTION_NAMES[1 - index], &plan).await?;
                to_sample(&found, |found| &found.first)
            };
            comparison.measure_case(&case, &variants, one).await?;
            comparison.add_ratio(
                &format!("p50, {case}, looked at/not"),
                &case,
                variants[1],
                variants[0],
                lower_goal(1.05),
            );
        }
        Ok(())
    }

    async fn measure_flow(
        &self,
        stage: &PoolNode,
        flow: FlowSize,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let case = format!("{}, {}", flow.name, round_trip_name(self.place));
        if !self.args.wants_case(&case) {
            return Ok(());
        }
        // Flows take longer; a quarter of the connections keeps a round short.
        let plan = self.flow_plan(flow, self.args.count.div_ceil(4));
        self.compare_origins(
            stage,
            &case,
            &CONNECT_ORIGINS[..2],
            &plan,
            |found| &found.last,
            comparison,
        )
        .await?;
        let goal = if self.place == FLOW_PLACE { 0.5 } else { 1.0 };
        comparison.add_ratio(
            &format!("p50, {case}, pool/direct"),
            &case,
            "pool",
            "direct",
            lower_goal(goal),
        );
        Ok(())
    }

    async fn compare_origins(
        &self,
        stage: &PoolNode,
        case: &str,
        ways: &[(ConnectOrigin, &str)],
        plan: &DialPlan,
        times: impl Fn(&DialResult) -> &Vec<u64>,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let names: Vec<_> = ways.iter().map(|(_, name)| *name).collect();
        comparison
            .measure_case(case, &names, async |index| {
                to_sample(&dial_by(stage, ways[index].0, plan).await?, &times)
            })
            .await
    }
}

async fn dial_by(
    stage: &PoolNode,
    way: ConnectOrigin,
    plan: &DialPlan,
) -> Result<DialResult, BenchError> {
    match way {
        ConnectOrigin::Direct => setup::dial_outside(plan),
        ConnectOrigin::Pool if plan.speech == RequestProtocol::Http => {
            stage.dial_from(FUNCTION_NAMES[2], plan).await
        }
        ConnectOrigin::Pool => stage.dial_from(FUNCTION_NAMES[0], plan).await,
        ConnectOrigin::Exit => {
            stage
                .dial_from(
                    FUNCTION_NAMES[0],
                    &DialPlan {
                        bound: true,
                        ..plan.clone()
                    },
                )
                .await
        }
    }
}

fn to_sample(
    found: &DialResult,
    times: impl Fn(&DialResult) -> &Vec<u64>,
) -> Result<RoundSample, BenchError> {
    // Failures end the run: a pool that refuses quickly would look fast.
    if let Some(why) = found.failures.first() {
        return Err(format!("{} connections failed: {why}", found.failures.len()).into());
    }
    let (mut tally, mut all) = (RequestTally::default(), Duration::ZERO);
    for &nanos in times(found) {
        all += Duration::from_nanos(nanos);
        tally.record_outcome(Ok(Duration::from_nanos(nanos)));
    }
    Ok(RoundSample::from_tally(&tally, all, Duration::ZERO))
}

fn lower_goal(goal: f64) -> RatioGoal {
    RatioGoal {
        value: |row| row.p50_us,
        better: BetterDirection::Lower,
        goal,
    }
}
