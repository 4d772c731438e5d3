//! The same question with everything around it: a whole `nearpath up`, as it is and with `--forward tc`, in front of one
//! function that is reached over the network. CPU time is that of gateway, node, watchdog and function together.

use std::io;

use super::{Args, http_goals};
use crate::command::measure::measured;
use crate::compare::{Comparison, Measured};
use crate::load::closed::Reuse;
use crate::load::{Template, Window, tight};
use crate::peer::alone::Alone;

pub(super) const WAYS: [(&str, &[&str]); 2] = [("up", &[]), ("up --forward tc", &["--forward", "tc"])];
/// Name, and connections of callers.
pub(super) const CASES: [(&str, usize); 2] = [("through up, 1 caller", 1), ("through up, 32 callers", 32)];

/// Measures both; where there is no `nearpath` in `PATH`, neither.
pub(super) async fn compare(comparison: &mut Comparison, args: &Args) -> io::Result<()> {
    let mut houses = Vec::new();
    if !CASES.iter().any(|(case, _)| args.wants(case)) {
        return Ok(());
    }
    for (name, options) in WAYS {
        match Alone::start(options).await {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                eprintln!("left out: {name}: nearpath: {why}");
                return Ok(());
            }
            started => houses.push(started?),
        }
    }
    for (case, callers) in CASES.into_iter().filter(|(case, _)| args.wants(case)) {
        let one = async |variant: usize| measure(&houses[variant], callers, args).await;
        comparison.loads(case, &WAYS.map(|(name, _)| name), one).await?;
        eprintln!("measured: {case}");
    }
    http_goals(comparison, args);
    Ok(())
}

async fn measure(alone: &Alone, callers: usize, args: &Args) -> io::Result<Measured> {
    let template = Template::get(alone.addr(), Alone::PATH).map_err(io::Error::other)?;
    let window = Window::after(args.warm_up, args.duration);
    let load = tight::run(&template, callers, Reuse::KeepAlive, window);
    let (loaded, cpu) = measured(load, window, &[alone.pid()]).await;
    Ok(Measured::of(&loaded?, window, cpu))
}
