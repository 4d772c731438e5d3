//! `backup`: saves what a gateway has deployed in a file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use nearpath_types::policy::WARNING_HEADER;
use serde_json::json;

use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output;

/// The name for standard input and output.
pub(super) const STANDARD_STREAM: &str = "-";

/// Options of `backup`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct BackupArgs {
    /// Write the backup (tar) to this file, which only its owner can read; `-`: standard output.
    /// It holds the secrets as they are: keep it as safe as a private key
    pub file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(super) fn run(args: &BackupArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let response = client.backup()?;
    let warnings: Vec<_> = response.headers().get_all(WARNING_HEADER).iter().collect();
    let warnings: Vec<_> = warnings
        .into_iter()
        .map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned())
        .collect();
    for warning in &warnings {
        eprintln!("nearpath: warning: {warning}");
    }
    // As large as it is: the file is not held in memory.
    let body = response.into_body().into_with_config().limit(u64::MAX);
    let mut body = body.reader();
    if args.file == Path::new(STANDARD_STREAM) {
        let mut out = io::stdout().lock();
        copy_all(&mut body, &mut out, &args.file)?;
        return Ok(ExitStatus::Ok);
    }
    let bytes = save_file(&mut body, &args.file)?;
    report(args, bytes, &warnings)?;
    Ok(ExitStatus::Ok)
}

fn report(args: &BackupArgs, bytes: u64, warnings: &[String]) -> Result<(), CommandError> {
    let file = args.file.display();
    if args.json {
        return output::print_json(
            &json!({ "file": args.file, "bytes": bytes, "warnings": warnings }),
        );
    }
    output::print(&format!(
        "{file}: {bytes} bytes. Secrets in it are not encrypted: keep it as safe as a private key.\n\
         Restore it with: nearpath restore {file} --data-dir NEW-DIRECTORY\n"
    ))
}

/// Writes beside the file and renames: an interrupted backup never replaces a good one.
fn save_file(body: &mut impl Read, path: &Path) -> Result<u64, CommandError> {
    let mut partial: OsString = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let saved = write_partial(body, &partial).and_then(|bytes| {
        fs::rename(&partial, path).map_err(|error| file_error(path, &error))?;
        Ok(bytes)
    });
    if saved.is_err() {
        let _ = fs::remove_file(&partial); // perhaps never created
    }
    saved
}

fn write_partial(body: &mut impl Read, path: &Path) -> Result<u64, CommandError> {
    let _ = fs::remove_file(path); // of an interrupted backup, perhaps with another mode
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file: File = options
        .open(path)
        .map_err(|error| file_error(path, &error))?;
    let bytes = copy_all(body, &mut file, path)?;
    file.sync_all().map_err(|error| file_error(path, &error))?;
    Ok(bytes)
}

/// Copies a body; errors of the two sides have different remedies.
fn copy_all(body: &mut impl Read, out: &mut impl Write, path: &Path) -> Result<u64, CommandError> {
    let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0);
    loop {
        let count = body.read(&mut buffer).map_err(|error| {
            let text = format!(
                "the backup ended early, nothing was saved: {error}; the gateway's log says why"
            );
            CommandError::new(ExitStatus::Failed, text)
        })?;
        if count == 0 {
            out.flush().map_err(|error| file_error(path, &error))?;
            return Ok(bytes);
        }
        out.write_all(&buffer[..count])
            .map_err(|error| file_error(path, &error))?;
        bytes += count as u64;
    }
}

fn file_error(path: &Path, error: &io::Error) -> CommandError {
    CommandError::new(
        ExitStatus::Failed,
        format!("cannot write {}: {error}", path.display()),
    )
}
