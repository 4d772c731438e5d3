//! `ca`: the authority of the nodes of an application, as files in a folder. No server takes part.

mod args;
mod report;

use std::path::Path;
use std::time::{Duration, SystemTime};

use nearpath_ca::{AuthorityFiles, AuthorityFilesError, IssuedNode};
use nearpath_types::NodeName;
use nearpath_types::status::rfc3339::format_time;

pub(crate) use args::CaCommand;
use args::{CaInitArgs, CaIssueArgs, CaRootArgs, CaRotateArgs};
use report::{IssuedReport, RootsReport};

use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::output;

/// Folder inside the authority's for the files of nodes.
const NODES_FOLDER: &str = "nodes";

pub(super) fn run(command: &CaCommand) -> CommandResult {
    match command {
        CaCommand::Init(args) => init(args),
        CaCommand::Issue(args) => issue(args),
        CaCommand::Rotate(args) => rotate(args),
        CaCommand::Retire(args) => retire(args),
        CaCommand::Show(args) => show(args),
    }
}

fn init(args: &CaInitArgs) -> CommandResult {
    let (now, root) = (SystemTime::now(), &args.root);
    let files = AuthorityFiles::init(&root.dir, &args.trust_domain, now, days(args.days));
    let files = files.map_err(|error| failed(&error))?;
    let (dir, end) = (root.dir.display(), format_time(files.roots()[0].not_after));
    let text = format!(
        "Authority for {} in {dir}, valid until {end}. Keep {dir}/ca.key secret: it can sign for every node.\n\
         Next: nearpath ca issue NODE --dir {dir}\n",
        files.trust_domain()
    );
    print(root, &RootsReport::new(&files, now), &text)
}

fn issue(args: &CaIssueArgs) -> CommandResult {
    let files = AuthorityFiles::open(&args.root.dir).map_err(|error| failed(&error))?;
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| args.root.dir.join(NODES_FOLDER));
    let (now, life) = (SystemTime::now(), days(args.days));
    let issued = args.nodes.iter().map(|node| files.issue(node, now, life));
    // All are signed before the first is written: after an error there is nothing to clean up.
    let issued = issued.collect::<Result<Vec<_>, _>>();
    let issued = issued.map_err(|error| failed(&error))?;
    let write = |(node, certificate): (&NodeName, IssuedNode)| {
        let folder = out.join(node.as_str());
        certificate.write(&folder)?;
        Ok(IssuedReport::new(node, folder, certificate.not_after()))
    };
    let issued = args.nodes.iter().zip(issued).map(write);
    let issued = issued.collect::<Result<Vec<_>, _>>();
    let issued = issued.map_err(|error| failed(&error))?;
    let text: String = issued.iter().map(IssuedReport::to_text).collect();
    print(&args.root, &issued, &text)
}

fn rotate(args: &CaRotateArgs) -> CommandResult {
    let (now, root) = (SystemTime::now(), &args.root);
    let files = AuthorityFiles::rotate(&root.dir, now, days(args.days));
    let files = files.map_err(|error| failed(&error))?;
    let text = format!(
        "The new root signs from now on; nodes accept {} roots. In this order:\n\
         1. Copy {} to every node's folder.\n\
         2. Run nearpath ca issue for every node, and copy the folders.\n\
         3. Run nearpath ca retire, and copy ca.crt to every node's folder again.\n",
        files.roots().len(),
        files.roots_path().display()
    );
    print(root, &RootsReport::new(&files, now), &text)
}

fn retire(args: &CaRootArgs) -> CommandResult {
    let (files, retired) = AuthorityFiles::retire(&args.dir).map_err(|error| failed(&error))?;
    let text = match retired.len() {
        0 => "There is one root; nothing was removed.\n".to_owned(),
        count => format!(
            "Removed roots: {count}. Copy {} to every node's folder: until then, nodes accept them.\n",
            files.roots_path().display()
        ),
    };
    print(args, &RootsReport::new(&files, SystemTime::now()), &text)
}

fn show(args: &CaRootArgs) -> CommandResult {
    let files = AuthorityFiles::open(&args.dir).map_err(|error| failed(&error))?;
    let report = RootsReport::new(&files, SystemTime::now());
    print(args, &report, &report.to_text())
}

/// Prints the report as JSON, or the text for people.
fn print(args: &CaRootArgs, report: &impl serde::Serialize, text: &str) -> CommandResult {
    match args.json {
        true => output::print_json(report)?,
        false => output::print(text)?,
    }
    Ok(ExitStatus::Ok)
}

fn days(count: u32) -> Duration {
    Duration::from_secs(u64::from(count) * 24 * 3600)
}

fn failed(error: &AuthorityFilesError) -> CommandError {
    let exit = match error {
        AuthorityFilesError::TrustDomain(_) => ExitStatus::Usage,
        _ => ExitStatus::Failed,
    };
    CommandError::new(exit, error.to_string())
}

/// Folder of the authority if none is named.
fn default_dir() -> &'static Path {
    Path::new("./nearpath-ca")
}
