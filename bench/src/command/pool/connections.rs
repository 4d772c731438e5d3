//! Plain connections: new ones, warm ones, and those that are looked at for nothing.

use std::time::Duration;

use nearpath_testkit::lab::Link;

use super::{Args, here};
use crate::apart::Error;
use crate::command::quic::Place;
use crate::compare::{Better, Comparison, Goal, Sample};
use crate::tally::Tally;
use crate::warm::dial::{Found, Plan};
use crate::warm::stage::{self, Ground, Stage};

/// The function that has a pool, and the one that may go nowhere.
const DIALLERS: [&str; 2] = ["pooled", "alone"];
/// Who connects.
const VARIANTS: [&str; 2] = ["direct", "pool"];

/// Every case at this distance.
pub(super) fn measure(args: &Args, place: Place, comparison: &mut Comparison) -> Result<(), Error> {
    let link = match place {
        Place::Loopback => None,
        Place::Link(delay) => Some(Link { delay, ..Link::default() }),
    };
    let ground = Ground::new(link.as_ref())?;
    let near = ground.near.clone();
    near.enter(|| here(Cases { args, place, ground: &ground }.all(comparison)))
}

struct Cases<'a> {
    args: &'a Args,
    place: Place,
    ground: &'a Ground,
}

impl Cases<'_> {
    async fn all(&self, comparison: &mut Comparison) -> Result<(), Error> {
        let stage = Stage::start().await?;
        let to = self.ground.server.to_string();
        stage.dialler(DIALLERS[0], &to).await?;
        stage.dialler(DIALLERS[1], "").await?;
        self.first_byte(&stage, comparison).await?;
        if self.place == Place::Loopback {
            self.nothing_to_do(&stage, comparison).await?;
        }
        for (what, down, up) in [("100 kB down", 100_000, 0), ("1 MB down", 1_000_000, 0), ("1 MB up", 1, 1_000_000)] {
            self.bulk(&stage, comparison, what, (down, up)).await?;
        }
        Ok(())
    }

    fn plan(&self, down: u32, up: u32, count: usize) -> Plan {
        Plan { to: Some(self.ground.server.to_string()), count, down, up, pause: self.args.pause }
    }

    async fn first_byte(&self, stage: &Stage, comparison: &mut Comparison) -> Result<(), Error> {
        let case = format!("socket() to first byte, {}", round_trip(self.place));
        if !self.args.wants(&case) {
            return Ok(());
        }
        let plan = self.plan(100, 0, self.args.count);
        comparison
            .case(&case, &VARIANTS, async |index| told(&dialled(stage, index, &plan).await?, |found| &found.first))
            .await?;
        let goal = if self.place == Place::Loopback { 0.9 } else { 0.55 };
        comparison.ratio(&format!("p50, {case}, pool/direct"), &case, VARIANTS[1], VARIANTS[0], lower(goal));
        Ok(())
    }

    /// A function connects to itself: whoever looks at its calls has nothing to do.
    async fn nothing_to_do(&self, stage: &Stage, comparison: &mut Comparison) -> Result<(), Error> {
        let case = "socket() to first byte, to itself";
        if !self.args.wants(case) {
            return Ok(());
        }
        let plan = Plan { to: None, ..self.plan(100, 0, self.args.count) };
        let variants = ["not looked at", "looked at"];
        let one = async |index: usize| {
            let found = stage.dial(DIALLERS[1 - index], &plan).await?;
            told(&found, |found| &found.first)
        };
        comparison.case(case, &variants, one).await?;
        comparison.ratio(&format!("p50, {case}, looked at/not"), case, variants[1], variants[0], lower(1.05));
        Ok(())
    }

    async fn bulk(
        &self,
        stage: &Stage,
        comparison: &mut Comparison,
        what: &str,
        size: (u32, u32),
    ) -> Result<(), Error> {
        let case = format!("{what}, {}", round_trip(self.place));
        if !self.args.wants(&case) {
            return Ok(());
        }
        let plan = self.plan(size.0, size.1, self.args.count.div_ceil(4));
        comparison
            .case(&case, &VARIANTS, async |index| told(&dialled(stage, index, &plan).await?, |found| &found.last))
            .await?;
        let goal = if self.place == Place::Link(Duration::from_millis(1)) { 0.5 } else { 1.0 };
        comparison.ratio(&format!("p50, {case}, pool/direct"), &case, VARIANTS[1], VARIANTS[0], lower(goal));
        Ok(())
    }
}

async fn dialled(stage: &Stage, index: usize, plan: &Plan) -> Result<Found, Error> {
    match index {
        0 => stage::dial(plan),
        _ => stage.dial(DIALLERS[0], plan).await,
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
    Goal { value: |row| row.p50_us, better: Better::Lower, goal }
}

/// As the published system says it.
fn round_trip(place: Place) -> String {
    match place {
        Place::Loopback => "loopback".to_owned(),
        Place::Link(delay) => format!("round trip {} ms", delay.as_secs_f64() * 2e3),
    }
}
