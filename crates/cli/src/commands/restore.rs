//! `restore`: makes a data directory of a backup.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use nearpath_server::backup::{RestoreSummary, restore_backup};
use serde_json::json;

use super::backup::STANDARD_STREAM;
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::output;

/// Options of `restore`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct RestoreArgs {
    /// Read the backup from this file; `-`: standard input
    pub file: PathBuf,
    /// Restore into this folder, which must not hold a database yet. Default: the one of
    /// `nearpath up`
    #[arg(long, env = "NEARPATH_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &RestoreArgs) -> CommandResult {
    let failed = |error: String| CommandError::new(ExitStatus::Failed, error);
    let data_dir = args
        .data_dir
        .clone()
        .unwrap_or_else(crate::default_data_dir);
    let archive = open_archive(&args.file)
        .map_err(|error| failed(format!("{}: {error}", args.file.display())))?;
    let summary = restore_backup(archive, &data_dir).map_err(|error| failed(error.to_string()))?;
    report(args, &data_dir, &summary)?;
    Ok(ExitStatus::Ok)
}

fn open_archive(path: &Path) -> io::Result<Box<dyn Read>> {
    match path == Path::new(STANDARD_STREAM) {
        true => Ok(Box::new(io::stdin().lock())),
        false => Ok(Box::new(io::BufReader::new(File::open(path)?))),
    }
}

fn report(
    args: &RestoreArgs,
    data_dir: &Path,
    summary: &RestoreSummary,
) -> Result<(), CommandError> {
    let RestoreSummary {
        functions,
        secrets,
        without_folder,
    } = summary;
    if args.json {
        return output::print_json(&json!({
            "dataDir": data_dir, "functions": functions, "secrets": secrets, "withoutFolder": without_folder,
        }));
    }
    for name in without_folder {
        eprintln!(
            "nearpath: warning: {name}: the backup has no copy of its folder; it starts only where the folder of its image is"
        );
    }
    output::print(&format!(
        "{functions} functions and {secrets} secrets restored into {dir}.\nStart them with: nearpath up --data-dir {dir}\n",
        dir = data_dir.display()
    ))
}
