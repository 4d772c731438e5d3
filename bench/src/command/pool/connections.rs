//! Plain connections and HTTP: new ones, warm ones, and those that are looked at for nothing.

use std::time::Duration;

use super::{Args, here, land, round_trip};
use crate::command::quic::Place;
use crate::compare::{Better, Comparison, Goal, Sample};
use crate::pool::dial::{Found, Plan, Speech};
use crate::pool::stage::{self, Ground, Stage};
use crate::remote::Error;
use crate::tally::Tally;

/// The function that has a pool; the one for which nothing is kept warm: nobody looks at its calls; and the one that speaks HTTP alone: nobody need look at
/// its, either.
const FUNCTIONS: [&str; 3] = ["pooled", "cold", "web"];
/// Round trip at which the published figures were taken.
const PUBLISHED: Place = Place::Link(Duration::from_micros(250));
/// At which flows of some size are compared.
const FAR: Place = Place::Link(Duration::from_millis(1));

/// Who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A program of the machine's, by itself.
    Direct,
    /// A function, whose socket is replaced by a warm one.
    Pool,
    /// A function whose socket cannot be: the node carries what it says, over a warm connection.
    Exit,
}

/// In the order of [`Way`].
const WAYS: [(Way, &str); 3] = [
    (Way::Direct, "direct"),
    (Way::Pool, "pool"),
    (Way::Exit, "pool, carried"),
];

/// Every case at this distance.
pub(super) fn measure(args: &Args, place: Place, comparison: &mut Comparison) -> Result<(), Error> {
    let ground = land(args, place)?;
    let near = ground.near.clone();
    near.enter(|| {
        here(
            Cases {
                args,
                place,
                ground: &ground,
            }
            .all(comparison),
        )
    })
}

struct Cases<'a> {
    args: &'a Args,
    place: Place,
    ground: &'a Ground,
}

/// One request and its answer.
#[derive(Debug, Clone, Copy)]
struct Flow {
    name: &'static str,
    speech: Speech,
    down: u32,
    up: u32,
}

/// Flows of some size. A plain connection is new to its server whoever opened it, so its window is that of a new one; one of HTTP was used before.
const FLOWS: [Flow; 6] = [
    Flow {
        name: "100 kB down",
        speech: Speech::Plain,
        down: 100_000,
        up: 0,
    },
    Flow {
        name: "1 MB down",
        speech: Speech::Plain,
        down: 1_000_000,
        up: 0,
    },
    Flow {
        name: "1 MB up",
        speech: Speech::Plain,
        down: 1,
        up: 1_000_000,
    },
    Flow {
        name: "HTTP, 100 kB down",
        speech: Speech::Http,
        down: 100_000,
        up: 0,
    },
    Flow {
        name: "HTTP, 1 MB down",
        speech: Speech::Http,
        down: 1_000_000,
        up: 0,
    },
    Flow {
        name: "HTTP, 1 MB up",
        speech: Speech::Http,
        down: 1,
        up: 1_000_000,
    },
];

impl Cases<'_> {
    async fn all(&self, comparison: &mut Comparison) -> Result<(), Error> {
        let stage = Stage::start(&[]).await?;
        let Ground {
            server, other, web, ..
        } = self.ground;
        let cold = format!("{other} protocol=tcp warm=0");
        let egress = [
            format!("{server} protocol=tcp, {cold}"),
            cold,
            format!("{web} protocol=http"),
        ];
        for (name, egress) in FUNCTIONS.iter().zip(egress) {
            stage.dialler(name, &egress).await?;
        }
        for (name, speech) in [("", Speech::Plain), ("HTTP: ", Speech::Http)] {
            self.first_byte(&stage, name, speech, comparison).await?;
        }
        self.nothing_to_do(&stage, comparison).await?;
        for flow in FLOWS {
            self.bulk(&stage, flow, comparison).await?;
        }
        Ok(())
    }

    fn plan(&self, flow: Flow, count: usize) -> Plan {
        let to = if flow.speech == Speech::Http {
            self.ground.web
        } else {
            self.ground.server
        };
        let Flow {
            speech, down, up, ..
        } = flow;
        Plan {
            to: Some(to.to_string()),
            count,
            speech,
            down,
            up,
            bound: false,
            pause: self.args.pause,
        }
    }

    fn small(&self, speech: Speech) -> Plan {
        self.plan(
            Flow {
                name: "",
                speech,
                down: 100,
                up: 0,
            },
            self.args.count,
        )
    }

    async fn first_byte(
        &self,
        stage: &Stage,
        name: &str,
        speech: Speech,
        comparison: &mut Comparison,
    ) -> Result<(), Error> {
        let case = format!("{name}socket() to first byte, {}", round_trip(self.place));
        if !self.args.wants(&case) {
            return Ok(());
        }
        let plan = self.small(speech);
        let ways = if speech == Speech::Http {
            &WAYS[..2]
        } else {
            &WAYS[..]
        };
        self.compare(stage, &case, ways, &plan, |found| &found.first, comparison)
            .await?;
        let goal = if self.place >= PUBLISHED { 0.55 } else { 0.9 };
        comparison.ratio(
            &format!("p50, {case}, pool/direct"),
            &case,
            "pool",
            "direct",
            lower(goal),
        );
        Ok(())
    }

    /// A function connects to where nothing is kept warm for it: to itself, and through the node.
    async fn nothing_to_do(&self, stage: &Stage, comparison: &mut Comparison) -> Result<(), Error> {
        let own = Plan {
            to: None,
            ..self.small(Speech::Plain)
        };
        let cold = Plan {
            to: Some(self.ground.other.to_string()),
            ..self.small(Speech::Plain)
        };
        for (where_to, plan) in [("to itself", own), ("not pooled", cold)] {
            let case = format!(
                "socket() to first byte, {where_to}, {}",
                round_trip(self.place)
            );
            if !self.args.wants(&case) || (plan.to.is_none() && self.place != Place::Loopback) {
                continue;
            }
            let variants = ["not looked at", "looked at"];
            let one = async |index: usize| {
                let found = stage.dial(FUNCTIONS[1 - index], &plan).await?;
                told(&found, |found| &found.first)
            };
            comparison.case(&case, &variants, one).await?;
            comparison.ratio(
                &format!("p50, {case}, looked at/not"),
                &case,
                variants[1],
                variants[0],
                lower(1.05),
            );
        }
        Ok(())
    }

    async fn bulk(
        &self,
        stage: &Stage,
        flow: Flow,
        comparison: &mut Comparison,
    ) -> Result<(), Error> {
        let case = format!("{}, {}", flow.name, round_trip(self.place));
        if !self.args.wants(&case) {
            return Ok(());
        }
        let plan = self.plan(flow, self.args.count.div_ceil(4));
        self.compare(
            stage,
            &case,
            &WAYS[..2],
            &plan,
            |found| &found.last,
            comparison,
        )
        .await?;
        let goal = if self.place == FAR { 0.5 } else { 1.0 };
        comparison.ratio(
            &format!("p50, {case}, pool/direct"),
            &case,
            "pool",
            "direct",
            lower(goal),
        );
        Ok(())
    }

    async fn compare(
        &self,
        stage: &Stage,
        case: &str,
        ways: &[(Way, &str)],
        plan: &Plan,
        times: impl Fn(&Found) -> &Vec<u64>,
        comparison: &mut Comparison,
    ) -> Result<(), Error> {
        let names: Vec<_> = ways.iter().map(|(_, name)| *name).collect();
        comparison
            .case(case, &names, async |index| {
                told(&dialled(stage, ways[index].0, plan).await?, &times)
            })
            .await
    }
}

async fn dialled(stage: &Stage, way: Way, plan: &Plan) -> Result<Found, Error> {
    match way {
        Way::Direct => stage::dial(plan),
        Way::Pool if plan.speech == Speech::Http => stage.dial(FUNCTIONS[2], plan).await,
        Way::Pool => stage.dial(FUNCTIONS[0], plan).await,
        Way::Exit => {
            stage
                .dial(
                    FUNCTIONS[0],
                    &Plan {
                        bound: true,
                        ..plan.clone()
                    },
                )
                .await
        }
    }
}

fn told(found: &Found, times: impl Fn(&Found) -> &Vec<u64>) -> Result<Sample, Error> {
    if let Some(why) = found.failures.first() {
        return Err(format!("{} connections failed: {why}", found.failures.len()).into());
    }
    let (mut tally, mut all) = (Tally::default(), Duration::ZERO);
    for &nanos in times(found) {
        all += Duration::from_nanos(nanos);
        tally.add(Ok(Duration::from_nanos(nanos)));
    }
    Ok(Sample::of(&tally, all, Duration::ZERO))
}

fn lower(goal: f64) -> Goal {
    Goal {
        value: |row| row.p50_us,
        better: Better::Lower,
        goal,
    }
}
