//! Plain and HTTP connections: new, warm, and supervised without effect.

use std::time::Duration;

use super::{PoolArgs, build_network, round_trip_name, run_local};
use crate::command::quic::NetworkPlace;
use crate::compare::{BenchComparison, BetterDirection, RatioGoal, RoundSample};
use crate::pool::dial::{DialPlan, DialResult, RequestProtocol};
use crate::pool::setup::{self, PoolNetwork, PoolNode};
use crate::remote::BenchError;
use crate::tally::RequestTally;

/// The function with a pool, the one without warm connections and supervision, and the one with
/// HTTP only, also unsupervised.
const FUNCTION_NAMES: [&str; 3] = ["pooled", "cold", "web"];
/// Round trip at which the published figures were taken.
const PUBLISHED_PLACE: NetworkPlace = NetworkPlace::Link(Duration::from_micros(250));
/// Round trip of the flow comparison.
const FLOW_PLACE: NetworkPlace = NetworkPlace::Link(Duration::from_millis(1));

/// Origins of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectOrigin {
    /// A plain program of the machine.
    Direct,
    /// A function whose socket is replaced by a warm one.
    Pool,
    /// A function whose bound socket cannot be replaced: the node proxies its bytes over a warm
    /// connection.
    Exit,
}

/// Variants in the order of [`ConnectOrigin`].
const CONNECT_ORIGINS: [(ConnectOrigin, &str); 3] = [
    (ConnectOrigin::Direct, "direct"),
    (ConnectOrigin::Pool, "pool"),
    (ConnectOrigin::Exit, "pool, proxied"),
];

/// Measures every case at this distance.
pub(super) fn measure(
    args: &PoolArgs,
    place: NetworkPlace,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let network = build_network(args, place)?;
    let near = network.near.clone();
    near.enter(|| {
        run_local(
            ConnectionCases {
                args,
                place,
                network: &network,
            }
            .measure_all(comparison),
        )
    })
}

struct ConnectionCases<'a> {
    args: &'a PoolArgs,
    place: NetworkPlace,
    network: &'a PoolNetwork,
}

/// Sizes of a request and its response.
#[derive(Debug, Clone, Copy)]
struct FlowSize {
    name: &'static str,
    protocol: RequestProtocol,
    down: u32,
    up: u32,
}

/// Flow sizes. Every plain connection is new to its server, so its window is that of a new one. An
/// HTTP connection was used before.
const FLOW_SIZES: [FlowSize; 6] = [
    FlowSize {
        name: "100 kB down",
        protocol: RequestProtocol::Plain,
        down: 100_000,
        up: 0,
    },
    FlowSize {
        name: "1 MB down",
        protocol: RequestProtocol::Plain,
        down: 1_000_000,
        up: 0,
    },
    FlowSize {
        name: "1 MB up",
        protocol: RequestProtocol::Plain,
        down: 1,
        up: 1_000_000,
    },
    FlowSize {
        name: "HTTP, 100 kB down",
        protocol: RequestProtocol::Http,
        down: 100_000,
        up: 0,
    },
    FlowSize {
        name: "HTTP, 1 MB down",
        protocol: RequestProtocol::Http,
        down: 1_000_000,
        up: 0,
    },
    FlowSize {
        name: "HTTP, 1 MB up",
        protocol: RequestProtocol::Http,
        down: 1,
        up: 1_000_000,
    },
];

impl ConnectionCases<'_> {
    async fn measure_all(&self, comparison: &mut BenchComparison) -> Result<(), BenchError> {
        let node = PoolNode::start(&[]).await?;
        let PoolNetwork {
            server, other, web, ..
        } = self.network;
        // The same server under another port: the same destination cannot be both pooled and not.
        let cold = format!("{other} protocol=tcp warm=0");
        let egress = [
            format!("{server} protocol=tcp, {cold}"),
            cold,
            format!("{web} protocol=http"),
        ];
        for (name, egress) in FUNCTION_NAMES.iter().zip(egress) {
            node.deploy_dialler(name, &egress).await?;
        }
        for (name, protocol) in [
            ("", RequestProtocol::Plain),
            ("HTTP: ", RequestProtocol::Http),
        ] {
            self.measure_first_byte(&node, name, protocol, comparison)
                .await?;
        }
        self.measure_overhead(&node, comparison).await?;
        for flow in FLOW_SIZES {
            self.measure_flow(&node, flow, comparison).await?;
        }
        Ok(())
    }

    fn flow_plan(&self, flow: FlowSize, count: usize) -> DialPlan {
        let to = if flow.protocol == RequestProtocol::Http {
            self.network.web
        } else {
            self.network.server
        };
        let FlowSize {
            protocol, down, up, ..
        } = flow;
        DialPlan {
            to: Some(to.to_string()),
            count,
            protocol,
            down,
            up,
            // An unbound socket can be replaced by a pooled connection; `ConnectOrigin::Exit` binds
            // to prevent that.
            bound: false,
            pause: self.args.pause,
        }
    }

    fn small_plan(&self, protocol: RequestProtocol) -> DialPlan {
        self.flow_plan(
            FlowSize {
                name: "",
                protocol,
                down: 100,
                up: 0,
            },
            self.args.count,
        )
    }

    async fn measure_first_byte(
        &self,
        node: &PoolNode,
        name: &str,
        protocol: RequestProtocol,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let case = format!(
            "{name}socket() to first byte, {}",
            round_trip_name(self.place)
        );
        if !self.args.wants_case(&case) {
            return Ok(());
        }
        let plan = self.small_plan(protocol);
        let origins = if protocol == RequestProtocol::Http {
            &CONNECT_ORIGINS[..2]
        } else {
            &CONNECT_ORIGINS[..]
        };
        self.compare_origins(
            node,
            &case,
            origins,
            &plan,
            |found| &found.first,
            comparison,
        )
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

    /// Measures supervision without effect: connections to the function's own listener, and to an
    /// unpooled destination.
    async fn measure_overhead(
        &self,
        node: &PoolNode,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let own = DialPlan {
            to: None,
            ..self.small_plan(RequestProtocol::Plain)
        };
        let cold = DialPlan {
            to: Some(self.network.other.to_string()),
            ..self.small_plan(RequestProtocol::Plain)
        };
        for (destination, plan) in [("own listener", own), ("not pooled", cold)] {
            let case = format!(
                "socket() to first byte, {destination}, {}",
                round_trip_name(self.place)
            );
            if !self.args.wants_case(&case)
                // A connection to itself is the same at every distance: once is enough.
                || (plan.to.is_none() && self.place != NetworkPlace::Loopback)
            {
                continue;
            }
            let variants = ["unsupervised", "supervised"];
            let one = async |index: usize| {
                let found = node.dial_from(FUNCTION_NAMES[1 - index], &plan).await?;
                to_sample(&found, |found| &found.first)
            };
            comparison.measure_case(&case, &variants, one).await?;
            comparison.add_ratio(
                &format!("p50, {case}, supervised/unsupervised"),
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
        node: &PoolNode,
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
            node,
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
        node: &PoolNode,
        case: &str,
        origins: &[(ConnectOrigin, &str)],
        plan: &DialPlan,
        times: impl Fn(&DialResult) -> &Vec<u64>,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let names: Vec<_> = origins.iter().map(|(_, name)| *name).collect();
        comparison
            .measure_case(case, &names, async |index| {
                to_sample(&dial_by(node, origins[index].0, plan).await?, &times)
            })
            .await
    }
}

async fn dial_by(
    node: &PoolNode,
    origin: ConnectOrigin,
    plan: &DialPlan,
) -> Result<DialResult, BenchError> {
    match origin {
        ConnectOrigin::Direct => setup::dial_outside(plan),
        ConnectOrigin::Pool if plan.protocol == RequestProtocol::Http => {
            node.dial_from(FUNCTION_NAMES[2], plan).await
        }
        ConnectOrigin::Pool => node.dial_from(FUNCTION_NAMES[0], plan).await,
        ConnectOrigin::Exit => {
            node.dial_from(
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
